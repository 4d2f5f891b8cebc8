// What an arena gives when others ask its quota, with a quota that the test plays.
#include "stillmap/allocators/kv/cache_offer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/allocators/kv/contents.h"
#include "tests/allocators/kv/played_quota.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

using kv::block_arena;
using kv::block_id;

class kv_cache_offer : public offer_test {
 protected:
  // Four blocks in a page group, which is a page in each of two ranges.
  std::unique_ptr<block_arena> make_arena(std::size_t spare = 0) const {
    auto made = block_arena::create(dev(), {.shape = {4, 2, page() / 64},
                                            .tokens_per_block = 4,
                                            .blocks = 256,
                                            .layers_per_range = 2,
                                            .spare_blocks = spare,
                                            .pool = make_pool()});
    return made ? std::move(*made) : nullptr;
  }
  static status step(block_arena &a, std::size_t free) {
    const status prepared = a.prepare(free, stream_ref::legacy());
    const status begun = a.begin_step();
    return prepared ? begun : prepared;
  }
  std::vector<block_id> filled(block_arena &a, std::size_t n) const {
    std::vector<block_id> ids(n);
    EXPECT_TRUE(step(a, n));
    EXPECT_TRUE(a.allocate(ids));
    each_part(a, ids, [&](device_address at, std::uint64_t word) {
      fill_part(at, a.layout().block_bytes(), word);
    });
    return ids;
  }
  static void expect_filled(const block_arena &a, std::span<const block_id> ids) {
    each_part(a, ids, [&](device_address at, std::uint64_t word) {
      EXPECT_TRUE(holds_part(at, a.layout().block_bytes(), word)) << "block " << (word >> 8);
    });
  }
  template <class Act>
  static void each_part(const block_arena &a, std::span<const block_id> ids, const Act &act) {
    for (const block_id b : ids) {
      for (std::uint32_t l = 0; l < 4; ++l) {
        for (std::uint32_t t = 0; t < 2; ++t) {
          act(a.tensor(l, t) + b * a.layout().block_stride(), std::uint64_t{b} << 8 | l << 1 | t);
        }
      }
    }
  }
  bool give_in_steps();
};

constexpr auto keep_contents = block_arena::contents::keep;

TEST_F(kv_cache_offer, free_memory_goes_before_cached_blocks_and_used_ones_stay) {
  const auto a = make_arena(64);
  const auto offer = make_offer();
  const auto used = filled(*a, 8), free = filled(*a, 8);
  auto cached = filled(*a, 8);
  ASSERT_DONE(a->release(cached, keep_contents));
  ASSERT_DONE(a->release(free));
  EXPECT_EQ(offer->wanted(), 0u);
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->wanted(), group());
  EXPECT_FALSE(quota_->answered) << "the engine has not come yet";
  std::vector<block_id> evicted;
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), group());
  EXPECT_EQ(quota_->answered, group());
  EXPECT_EQ(offer->wanted(), 0u);
  EXPECT_TRUE(evicted.empty());
  EXPECT_EQ(a->stats().free, 4u);
  // More than there is.
  quota_->ask(reclaim_kind::evictable, 100 * group());
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), 3 * group());
  EXPECT_EQ(quota_->answered, 3 * group());
  std::sort(evicted.begin(), evicted.end());
  std::sort(cached.begin(), cached.end());
  EXPECT_EQ(evicted, cached);
  EXPECT_EQ(a->stats().mapped_bytes, 2 * group());
  EXPECT_EQ(a->stats().used, 8u);
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), 0u);
  EXPECT_EQ(quota_->answered, 0u) << "who asks hears that there is nothing";
  expect_filled(*a, used);
}

TEST_F(kv_cache_offer, contents_go_only_where_they_are_asked_for) {
  const auto a = make_arena();
  const auto offer = make_offer();
  const auto cached = filled(*a, 8);
  ASSERT_DONE(a->release(cached, keep_contents));
  quota_->ask(reclaim_kind::cached, group());
  std::vector<block_id> evicted;
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), 0u);
  EXPECT_EQ(quota_->answered, 0u);
  EXPECT_EQ(a->stats().cached, 8u);
  expect_filled(*a, cached);
}

TEST_F(kv_cache_offer, those_used_longest_ago_go_first) {
  const auto a = make_arena();
  const auto offer = make_offer();
  const auto first = filled(*a, 4), second = filled(*a, 4), third = filled(*a, 4);
  for (const auto &ids : {first, second, third}) ASSERT_DONE(a->release(ids, keep_contents));
  ASSERT_DONE(a->retain(first));
  ASSERT_DONE(a->release(first, keep_contents));
  for (const auto &oldest : {second, third, first}) {
    quota_->ask(reclaim_kind::evictable, 1);
    std::vector<block_id> evicted;
    EXPECT_EQ(offer->give(*a, 0, evicted).value(), group());
    EXPECT_EQ(evicted, oldest);
  }
}

TEST_F(kv_cache_offer, the_coming_step_keeps_its_free_blocks) {
  const auto a = make_arena(64);
  const auto offer = make_offer();
  const auto cached = filled(*a, 12);
  for (std::size_t i = 0; i < 12; i += 4) {
    ASSERT_DONE(a->release(std::span(cached).subspan(i, 4), keep_contents));
  }
  ASSERT_DONE(a->drop(std::span(cached).first(2)));  // in the oldest page group
  ASSERT_DONE(step(*a, 10));
  const std::size_t free = a->stats().free;
  ASSERT_EQ(free, 10u);
  quota_->ask(reclaim_kind::evictable, group());
  std::vector<block_id> evicted;
  EXPECT_EQ(offer->give(*a, free, evicted).value(), group());
  EXPECT_GE(a->stats().free, free);
  std::vector<block_id> next(free);
  ASSERT_DONE(a->allocate(next));
  EXPECT_EQ(evicted.size(), 6u) << "one group has become free, the next one went";
}

TEST_F(kv_cache_offer, nothing_goes_for_one_that_waits_no_more) {
  const auto a = make_arena();
  const auto offer = make_offer();
  ASSERT_DONE(a->release(filled(*a, 8), keep_contents));
  quota_->ask(reclaim_kind::evictable, 2 * group());
  quota_->withdraw();
  std::vector<block_id> evicted;
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), 0u);
  EXPECT_EQ(offer->wanted(), 0u);
  // Less than before.
  quota_->ask(reclaim_kind::evictable, 2 * group());
  quota_->ask(reclaim_kind::evictable, group());
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), group());
  EXPECT_EQ(evicted.size(), 4u);
}

TEST_F(kv_cache_offer, an_offer_that_ends_answers) {
  auto offer = make_offer();
  quota_->ask(reclaim_kind::evictable, 1);
  EXPECT_FALSE(quota_->answered);
  offer.reset();
  EXPECT_EQ(quota_->answered, 0u);
}

TEST_F(kv_cache_offer, what_is_refused) {
  EXPECT_TRUE(fails_with(outcome(kv::cache_offer::create(nullptr)), errc::invalid_argument,
                         "kv::cache_offer::create"));
  class silent final : public memory_quota {
    status reserve(std::uint64_t) override { return {}; }
    status release(std::uint64_t) override { return {}; }
  };
  EXPECT_TRUE(fails_with(outcome(kv::cache_offer::create(std::make_shared<silent>())),
                         errc::not_supported, "kv::cache_offer::create"));
  const auto a = make_arena();
  const auto offer = make_offer();
  ASSERT_DONE(a->release(filled(*a, 8), keep_contents));
  quota_->ask(reclaim_kind::evictable, group());
  std::vector<block_id> evicted;
  quota_->fails = true;
  EXPECT_TRUE(
      fails_with(outcome(offer->give(*a, 0, evicted)), errc::busy, "kv::cache_offer::give"));
  EXPECT_EQ(offer->wanted(), group());
  quota_->fails = false;
  ASSERT_DONE(a->prepare(9, stream_ref::legacy()));
  EXPECT_TRUE(
      fails_with(outcome(offer->give(*a, 0, evicted)), errc::busy, "kv::cache_offer::give"));
  EXPECT_EQ(offer->wanted(), group()) << "it can be given later";
  EXPECT_TRUE(evicted.empty());
  ASSERT_DONE(a->begin_step());
  EXPECT_EQ(offer->give(*a, 0, evicted).value(), group());
}

// Blocks that cross pages: the neighbours of used ones need the same page groups.
TEST_F(kv_cache_offer, blocks_whose_memory_a_neighbour_needs_stay) {
  const auto pool = page_pool::create(dev(), {.keep_free = 0, .quota = quota_}).value();
  const auto a = block_arena::create(dev(), {.shape = {3, 1, page() / 4 / 3},
                                             .tokens_per_block = 5,
                                             .blocks = 64,
                                             .layers_per_range = 3,
                                             .spare_blocks = 0,
                                             .pool = pool})
                     .value();
  const auto offer = make_offer();
  ASSERT_GT(a->layout().block_stride(), page());
  ASSERT_DONE(step(*a, 4));
  std::vector<block_id> ids(4);
  ASSERT_DONE(a->allocate(ids));
  std::sort(ids.begin(), ids.end());
  ASSERT_EQ(ids, (std::vector<block_id>{0, 1, 2, 3}));
  ASSERT_DONE(a->release(std::span(ids).first(1), keep_contents));
  ASSERT_DONE(a->release(std::span(ids).subspan(2), keep_contents));
  const std::size_t before = pool->stats().created.bytes();
  quota_->ask(reclaim_kind::evictable, 100 * page());
  std::vector<block_id> evicted;
  const std::size_t given = offer->give(*a, 0, evicted).value();
  EXPECT_GT(given, 0u);
  EXPECT_EQ(pool->stats().created.bytes(), before - given);
  EXPECT_EQ(a->stats().used, 1u);
  EXPECT_EQ(a->stats().mapped_bytes, pool->stats().created.bytes());
}

TEST_F(kv_cache_offer, is_asked_on_any_thread_while_the_engine_steps) {
  const auto a = make_arena();
  const auto used = filled(*a, 8);
  // Without the quota's book-keeping, which is the test's thread's.
  struct two final : memory_quota {
    status reserve(std::uint64_t) override { return {}; }
    status release(std::uint64_t) override { return {}; }
    std::unique_ptr<reclaimer_registration> add_reclaimer(
        reclaim_kind, std::function<std::uint64_t(std::uint64_t)> reclaim) override {
      reclaimers.push_back(std::move(reclaim));
      return std::make_unique<reclaimer_registration>();
    }
    result<std::uint64_t> retry_reclaim() override { return reclaimers.back()(1); }
    std::vector<std::function<std::uint64_t(std::uint64_t)>> reclaimers;
  };
  const auto quota = std::make_shared<two>();
  const auto offer = kv::cache_offer::create(quota).value();
  std::jthread others([&](const std::stop_token &stop) {
    while (!stop.stop_requested()) {
      for (const auto &reclaim : quota->reclaimers) (void)reclaim(1);
    }
  });
  for (int i = 0; i < 50; ++i) {
    ASSERT_DONE(a->release(filled(*a, 4), keep_contents));
    std::vector<block_id> evicted;
    (void)offer->wanted();
    ASSERT_DONE(outcome(offer->give(*a, 0, evicted)));
    ASSERT_EQ(evicted.size(), 4u);
  }
  expect_filled(*a, used);
}

// ---- failures --------------------------------------------------------------------------------------

// Two questions, whose answers may take two tries. Whether none was refused.
bool kv_cache_offer::give_in_steps() {
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
  std::vector<block_id> ids(16);
  soon([&] { return step(*a, 16); });
  EXPECT_TRUE(a->allocate(ids));
  const auto used = std::span(ids).first(4), cached = std::span(ids).subspan(4);
  each_part(*a, used, [&](device_address at, std::uint64_t word) {
    fill_part(at, a->layout().block_bytes(), word);
  });
  EXPECT_TRUE(a->release(cached, keep_contents));
  std::vector<block_id> evicted;
  for (int i = 0; i < 2; ++i) {
    quota_->ask(reclaim_kind::evictable, group());
    soon([&] { return offer->give(*a, 0, evicted); });
    EXPECT_EQ(offer->wanted(), 0u);
    EXPECT_TRUE(quota_->answered);
  }
  // Whatever failed, who looks at the evicted blocks knows all that the arena forgot.
  EXPECT_EQ(evicted.size() + a->stats().cached, cached.size());
  for (const block_id b : evicted) EXPECT_FALSE(a->has_contents(b));
  EXPECT_LE(a->stats().mapped_bytes, 2 * group());
  expect_filled(*a, used);
  soon([&] { return a->trim(); });
  return done;
}

TEST_F(kv_cache_offer, each_driver_call_fails_once) {
  expect_unreturnable();
  ASSERT_TRUE(give_in_steps());
  constexpr const char *names[] = {"cuMemCreate",   "cuMemMap",     "cuMemSetAccess",
                                   "cuMemUnmap",    "cuMemRelease", "cuCtxSynchronize",
                                   "cuEventCreate", "cuEventRecord"};
  EXPECT_GT(refuse_each(names, [&] { return give_in_steps(); }), 5u);
}

TEST_F(kv_cache_offer, each_host_allocation_fails_once) {
  allocation_sweep all;
  all += fail_each_allocation([&](failing_allocation &failing) {
    const auto made = failing([&] { return kv::cache_offer::create(quota_); });
    EXPECT_EQ(made.has_value(), failing.done());
  });
  all += fail_each_allocation([&](failing_allocation &failing) {
    const auto a = make_arena();
    const auto offer = make_offer();
    ASSERT_TRUE(a && offer);
    ASSERT_DONE(a->release(filled(*a, 8), keep_contents));
    quota_->ask(reclaim_kind::evictable, group());
    std::vector<block_id> evicted;
    const auto once = failing([&] { return offer->give(*a, 0, evicted); });
    EXPECT_EQ(evicted.size() + a->stats().cached, 8u);
    if (!once) ASSERT_DONE(outcome(offer->give(*a, 0, evicted)));
    EXPECT_TRUE(quota_->answered);
    EXPECT_LE(a->stats().mapped_bytes, group());
  });
  all.note("an offer of cached blocks");
  EXPECT_GT(all.points, fewest_points(8));
}

}  // namespace
}  // namespace stillmap::testing
