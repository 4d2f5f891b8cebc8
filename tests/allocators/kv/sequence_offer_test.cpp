// Sequences that an engine keeps as prefixes, and that go when others of a quota ask for memory.
#include <gtest/gtest.h>

#include <vector>

#include "stillmap/allocators/kv/cache_offer.h"
#include "tests/allocators/kv/played_quota.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

using kv::sequence_arena;
using kv::sequence_id;

class kv_sequence_offer : public offer_test {
 protected:
  // 32 tokens in a page group, which is a page in each of two ranges.
  std::unique_ptr<sequence_arena> make_arena(std::size_t spare_groups = 0) const {
    auto made = sequence_arena::create(dev(), {.shape = {4, 2, page() / 128},
                                               .longest = 160,
                                               .sequences = 16,
                                               .layers_per_range = 2,
                                               .spare_bytes = spare_groups * group(),
                                               .pool = make_pool()});
    return made ? std::move(*made) : nullptr;
  }
  static status step(sequence_arena &a) {
    const status prepared = a.prepare(stream_ref::legacy());
    const status begun = a.begin_step(stream_ref::legacy());
    return prepared ? begun : prepared;
  }
  // Of this many page groups.
  static sequence_id sequence(sequence_arena &a, std::size_t groups) {
    const sequence_id s = *a.add();
    EXPECT_TRUE(a.reserve(s, groups * 32));
    EXPECT_TRUE(step(a));
    return s;
  }
  static sequence_id fork(sequence_arena &a, sequence_id of, std::size_t tokens,
                          std::size_t groups) {
    const sequence_id s = *a.fork(of, tokens);
    EXPECT_TRUE(a.reserve(s, groups * 32));
    EXPECT_TRUE(step(a));
    return s;
  }
  bool give_in_steps();
};

TEST_F(kv_sequence_offer, spare_memory_goes_first_and_then_the_oldest) {
  const auto a = make_arena(8);
  const auto offer = make_offer();
  std::vector<sequence_id> cached = {sequence(*a, 2), sequence(*a, 3), sequence(*a, 1)};
  const sequence_id used = sequence(*a, 1), gone = sequence(*a, 2);
  ASSERT_TRUE(a->remove(gone));
  ASSERT_TRUE(step(*a));
  EXPECT_EQ(a->stats().memory_bytes, 9 * group());
  const auto give = [&](std::size_t groups) {
    std::vector<sequence_id> removed;
    quota_->ask(reclaim_kind::evictable, groups * group());
    const auto given = offer->give(*a, cached, removed);
    EXPECT_TRUE(given) << given.error().message();
    EXPECT_EQ(quota_->answered, std::optional<std::uint64_t>(*given));
    EXPECT_EQ(offer->wanted(), 0u);
    std::erase_if(cached, [&](sequence_id s) { return !a->has(s); });
    return std::pair(*given / group(), removed.size());
  };
  EXPECT_EQ(give(1), std::pair(std::size_t{1}, std::size_t{0}));
  EXPECT_EQ(give(2), std::pair(std::size_t{2}, std::size_t{1}));  // one is spare
  // The other one of the first is spare now.
  EXPECT_EQ(give(2), std::pair(std::size_t{2}, std::size_t{1}));
  EXPECT_EQ(cached.size(), 1u);
  EXPECT_EQ(give(40), std::pair(std::size_t{3}, std::size_t{1}));
  EXPECT_EQ(give(1), std::pair(std::size_t{0}, std::size_t{0}));
  EXPECT_TRUE(a->has(used));
  EXPECT_EQ(a->stats().memory_bytes, group());
  EXPECT_EQ(dev().space().stats().physical.bytes(), group());
}

TEST_F(kv_sequence_offer, shared_pages_go_with_the_last_that_has_them) {
  const auto a = make_arena();
  const auto offer = make_offer();
  const sequence_id prompt = sequence(*a, 3);
  const std::vector<sequence_id> cached = {prompt, fork(*a, prompt, 64, 3),
                                           fork(*a, prompt, 96, 4)};
  EXPECT_EQ(a->stats().memory_bytes, 5 * group());
  std::vector<sequence_id> removed;
  // The prompt has nothing of its own, the second one a page group.
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->give(*a, cached, removed).value(), group());
  EXPECT_EQ(removed, (std::vector<sequence_id>{cached[0], cached[1]}));
  EXPECT_EQ(a->capacity(cached[2]), 128u);
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->give(*a, {&cached[2], 1}, removed).value(), group());
  EXPECT_EQ(removed.size(), 3u);
  ASSERT_TRUE(step(*a));
  EXPECT_EQ(a->stats().memory_bytes, 0u);
}

TEST_F(kv_sequence_offer, contents_go_only_where_they_are_asked_for) {
  const auto a = make_arena();
  const auto offer = make_offer();
  const sequence_id one = sequence(*a, 2);
  std::vector<sequence_id> removed;
  quota_->ask(reclaim_kind::cached, 8 * group());
  EXPECT_EQ(offer->give(*a, {&one, 1}, removed).value(), 0u);
  EXPECT_TRUE(removed.empty());
  EXPECT_TRUE(a->has(one));

  // What is refused.
  quota_->ask(reclaim_kind::evictable, group());
  const sequence_id none{one.slot, one.serial + 1};
  EXPECT_TRUE(fails_with(outcome(offer->give(*a, {&none, 1}, removed)), errc::invalid_argument,
                         "kv::cache_offer::give", one.slot, 0));
  EXPECT_NE(offer->wanted(), 0u);
  ASSERT_TRUE(a->reserve(one, 96));
  ASSERT_TRUE(a->prepare(stream_ref::legacy()));
  EXPECT_TRUE(fails_with(outcome(offer->give(*a, {&one, 1}, removed)), errc::busy,
                         "kv::cache_offer::give"));
  ASSERT_TRUE(a->begin_step(stream_ref::legacy()));
  // One that a fork has still to copy from stays for a step.
  const sequence_id copy = *a->fork(one, 40);
  EXPECT_EQ(offer->give(*a, {&one, 1}, removed).value(), 0u);
  ASSERT_TRUE(step(*a));
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->give(*a, {&one, 1}, removed).value(), 2 * group());
  EXPECT_EQ(removed, std::vector{one});
  EXPECT_EQ(a->capacity(copy), 64u);
}

bool kv_sequence_offer::give_in_steps() {
  const auto a = make_arena();
  const auto offer = make_offer();
  if (!a || !offer) return false;
  bool done = true;
  const auto soon = [&](const auto &act) {
    for (int i = 0; i < 2; ++i) {
      if (act()) return;
      done = false;
    }
    ADD_FAILURE() << "refused twice";
  };
  std::vector<sequence_id> cached;
  for (int i = 0; i < 4; ++i) {
    cached.push_back(*a->add());
    EXPECT_TRUE(a->reserve(cached.back(), 32));
    soon([&] {
      const status begun = step(*a);
      if (!begun) {
        EXPECT_TRUE(a->reserve(cached.back(), 32));
      }
      return begun.has_value();
    });
  }
  std::vector<sequence_id> removed;
  for (int i = 0; i < 2; ++i) {
    quota_->ask(reclaim_kind::evictable, group());
    soon([&] {
      std::erase_if(cached, [&](sequence_id s) { return !a->has(s); });
      return offer->give(*a, cached, removed);
    });
    EXPECT_EQ(offer->wanted(), 0u);
    EXPECT_TRUE(quota_->answered);
  }
  // Whatever failed, the engine knows all that went.
  for (const sequence_id s : removed) EXPECT_FALSE(a->has(s));
  EXPECT_EQ(removed.size() + a->stats().sequences, 4u);
  EXPECT_LE(a->stats().memory_bytes, 2 * group());
  soon([&] { return a->trim(); });
  return done;
}

TEST_F(kv_sequence_offer, each_driver_call_fails_once) {
  expect_unreturnable();
  ASSERT_TRUE(give_in_steps());
  constexpr const char *names[] = {"cuMemCreate",   "cuMemMap",     "cuMemSetAccess",
                                   "cuMemUnmap",    "cuMemRelease", "cuCtxSynchronize",
                                   "cuEventCreate", "cuEventRecord"};
  EXPECT_GT(refuse_each(names, [&] { return give_in_steps(); }), 5u);
}

TEST_F(kv_sequence_offer, each_host_allocation_fails_once) {
  const allocation_sweep all = fail_each_allocation([&](failing_allocation &failing) {
    const auto a = make_arena();
    const auto offer = make_offer();
    ASSERT_TRUE(a && offer);
    const std::vector<sequence_id> cached = {sequence(*a, 1), sequence(*a, 1)};
    quota_->ask(reclaim_kind::evictable, group());
    std::vector<sequence_id> removed;
    const auto once = failing([&] { return offer->give(*a, cached, removed); });
    EXPECT_EQ(removed.size() + a->stats().sequences, 2u);
    if (!once) {
      std::vector<sequence_id> left;
      for (const sequence_id s : cached) {
        if (a->has(s)) left.push_back(s);
      }
      ASSERT_DONE(outcome(offer->give(*a, left, removed)));
    }
    EXPECT_TRUE(quota_->answered);
    EXPECT_LE(a->stats().memory_bytes, group());
  });
  all.note("an offer of cached sequences");
  EXPECT_GT(all.points, fewest_points(3));
}

}  // namespace
}  // namespace stillmap::testing
