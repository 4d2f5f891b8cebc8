// Prefix caches that another process takes over: every byte, the table, and failures.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/checkpoint/handoff/processes.h"
#include "tests/checkpoint/prefix_cache/fixture.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

using namespace std::chrono_literals;
using handoff::testing::other_process;
using handoff::testing::part;
using handoff::testing::say_and_end;
using prefix_cache::entry;

class prefix_cache_handoff_test : public prefix_cache_fixture {
 protected:
  void SetUp() override {
    prefix_cache_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    if (part() == "heir") heir();
  }

  // Of an arena whose pages can be sent.
  kv::block_arena_options sendable(std::size_t tokens_per_block = 4) const {
    auto o = options();
    o.tokens_per_block = tokens_per_block;
    o.pool = *page_pool::create(dev(), {.exportable = handle_type::posix_fd, .keep_free = 0});
    return o;
  }
  exchange send_here(kv::block_arena &a, std::span<const entry> entries) const {
    return exchanged(
        [&](handoff::connection &to) { return prefix_cache::send(a, entries, to, anywhere()); });
  }

 private:
  // The process that takes the cache over. It has an arena already.
  [[noreturn]] void heir() {
    auto o = sendable();
    const auto a = arena(o);
    auto at = handoff::listener::create(handoff::testing::meeting_place());
    if (!at) say_and_end(at.error().message());
    auto from = at->accept(30s);
    if (!from) say_and_end(from.error().message());
    auto received = handoff::receive(dev(), *from, anywhere());
    if (!received) say_and_end(received.error().message());
    const driver_counts before = counts();
    const auto back = prefix_cache::adopt(*a, *received);
    if (!back) say_and_end(back.error().message());
    const driver_counts cost = counts() - before;
    if (cost.bytes_to_device + cost.bytes_on_device != 0 || cost.bytes_to_host > 400) {
      say_and_end("copied");
    }
    std::vector<kv::block_id> ids;
    for (const entry &e : *back) ids.push_back(e.block);
    if (*back != table(ids) || ids.size() != 8 || ids.front() != 6) say_and_end("another table");
    if (!received->release(fence{})) say_and_end("cannot release");
    for (const kv::block_id b : ids) {
      if (!is_filled(*a, b)) say_and_end("block " + std::to_string(b) + " is another's");
    }
    if (a->stats().cached != 8) say_and_end("not cached");
    empty(*a);
    const std::size_t left = dev().space().stats().physical.bytes();
    say_and_end(left == 0 ? "took all" : "keeps " + std::to_string(left));
  }
};

TEST_F(prefix_cache_handoff_test, another_process_takes_the_cache_over) {
  const std::string place = "@stillmap-prefix-cache-" + std::to_string(::getpid());
  other_process heir("heir", place);
  const auto a = arena(sendable());
  const auto entries = fill_cache(*a);
  auto to = handoff::connection::connect(place, 30s);
  ASSERT_TRUE(to) << to.error().message();
  const auto sent = prefix_cache::send(*a, entries, *to, anywhere());
  ASSERT_TRUE(sent) << sent.error().message();
  EXPECT_EQ(sent->bytes, 3 * 2 * page() + page());  // the groups with blocks, and the table
  EXPECT_EQ(heir.verdict(), "took all");
  EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
}

TEST_F(prefix_cache_handoff_test, blocks_of_all_sizes_come_at_other_addresses) {
  for (const std::size_t tokens : {4, 3, 32, 48}) {  // blocks that divide, cross and exceed pages
    SCOPED_TRACE(tokens);
    auto first = arena(sendable(tokens));
    const auto entries = fill_cache(*first);
    auto moved = send_here(*first, entries);
    ASSERT_TRUE(moved.sent) << moved.sent.error().message();
    ASSERT_TRUE(moved.received) << moved.received.error().message();
    first.reset();
    const auto a = arena(sendable(tokens));
    ASSERT_TRUE(step(*a, 10));  // what is free does not stand in the way
    const auto back = prefix_cache::adopt(*a, *moved.received);
    ASSERT_TRUE(back) << back.error().message();
    EXPECT_EQ(*back, entries);
    { const auto done = std::move(*moved.received); }
    expect_cached(*a, entries);

    // They are blocks as any: used, released, and beside new ones.
    const kv::block_id last = entries.back().block;
    ASSERT_TRUE(a->retain({&last, 1}));
    ASSERT_TRUE(step(*a, 20));
    std::vector<kv::block_id> fresh(20);
    ASSERT_TRUE(a->allocate(fresh));
    for (const kv::block_id b : fresh) fill(*a, b, 1);
    for (const entry &e : entries) EXPECT_TRUE(is_filled(*a, e.block)) << "block " << e.block;
    ASSERT_TRUE(a->release({&last, 1}));
    ASSERT_TRUE(a->release(fresh));
    // And their pages can be suspended, which nobody else's can: they are this arena's alone.
    const auto s = checkpoint::suspender::create(dev());
    ASSERT_TRUE((*s)->suspend("cache"));
    ASSERT_TRUE((*s)->resume("cache"));
    for (const entry &e : entries) {
      if (e.block != last) {
        EXPECT_TRUE(is_filled(*a, e.block)) << "block " << e.block;
      }
    }
    empty(*a);
    EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  }
}

TEST_F(prefix_cache_handoff_test, what_cannot_be_sent_stays) {
  const auto a = arena(sendable());
  const auto entries = fill_cache(*a);
  const auto why = [&](std::span<const entry> named) {
    auto moved = send_here(*a, named);
    EXPECT_FALSE(moved.received);
    return outcome(moved.sent);
  };
  const std::vector<entry> twice = {entries[0], entries[0]};
  EXPECT_TRUE(
      fails_with(why(twice), errc::invalid_argument, "prefix_cache::send", entries[0].block, 0));
  const std::vector<entry> longer = {{entries[0].block, std::string(4097, 'a')}};
  EXPECT_TRUE(fails_with(why(longer), errc::invalid_argument, "prefix_cache::send", 4097, 4096));
  {
    const growable_buffer other = filled(1, "cache", 1);
    EXPECT_TRUE(fails_with(why(entries), errc::busy, "prefix_cache::send", 2, 1));
  }
  {
    const auto plain = arena(options("plain"));  // pages that cannot be exported
    const auto ids = filled_blocks(*plain, 4);
    auto moved = send_here(*plain, table(ids));
    EXPECT_TRUE(fails_with(outcome(moved.sent), errc::not_supported, "prefix_cache::send"));
    EXPECT_FALSE(moved.received);
    expect_filled(*plain, ids);
  }
  const auto s = checkpoint::suspender::create(dev());
  ASSERT_TRUE((*s)->suspend("cache"));
  EXPECT_TRUE(fails_with(why(entries), errc::busy, "prefix_cache::send"));
  ASSERT_TRUE((*s)->resume("cache"));
  auto moved = send_here(*a, entries);
  ASSERT_TRUE(moved.sent) << moved.sent.error().message();
}

TEST_F(prefix_cache_handoff_test, an_arena_that_does_not_fit_leaves_the_memory) {
  auto first = arena(sendable());
  const auto entries = fill_cache(*first);
  const auto moved = send_here(*first, entries);
  ASSERT_TRUE(moved.received) << moved.received.error().message();
  first.reset();
  const auto why = [&](kv::block_arena_options o) {
    const auto a = arena(o);
    const auto back = prefix_cache::adopt(*a, *moved.received);
    EXPECT_EQ(a->stats().used + a->stats().cached, 0u);
    return outcome(back);
  };
  auto o = sendable();
  o.blocks = 72;
  EXPECT_TRUE(fails_with(why(o), errc::invalid_argument, "prefix_cache::adopt"));
  o = sendable();
  o.tag = "another";
  EXPECT_TRUE(fails_with(why(o), errc::invalid_argument, "prefix_cache::adopt", 0, 1));
  const auto a = arena(sendable());
  const auto used = filled_blocks(*a, 1);
  EXPECT_TRUE(fails_with(outcome(prefix_cache::adopt(*a, *moved.received)), errc::busy,
                         "prefix_cache::adopt", 1, 0));
  ASSERT_TRUE(a->release(used));
  ASSERT_TRUE(prefix_cache::adopt(*a, *moved.received));
  expect_cached(*a, entries);
  // Twice is once too often: the first one has them.
  EXPECT_TRUE(fails_with(outcome(prefix_cache::adopt(*a, *moved.received)), errc::busy,
                         "prefix_cache::adopt", entries.size(), 0));
}

// The process at the other end may have sent anything.
TEST_F(prefix_cache_handoff_test, a_forged_table_is_refused) {
  const std::string name = prefix_cache::table_tag("cache");
  std::vector<unsigned char> good;
  std::vector<entry> entries;
  const auto adopted = [&](const std::vector<unsigned char> &bytes) {
    auto source = arena(sendable());
    entries = fill_cache(*source);
    auto moved = exchanged([&](handoff::connection &to) -> result<handoff::sent_memory> {
      if (bytes.empty()) return prefix_cache::send(*source, entries, to, anywhere());
      const auto pool =
          *page_pool::create(dev(), {.exportable = handle_type::posix_fd, .keep_free = 0});
      auto forged = growable_buffer::create(dev(), {.tag = name, .pools = {pool}});
      EXPECT_TRUE(forged->resize(bytes.size()));
      EXPECT_TRUE(forged->copy_from_host(0, bytes.data(), bytes.size(), stream_ref::legacy()));
      const std::array<std::string, 2> tags = {"cache", name};
      return handoff::send(dev(), to, tags, anywhere());
    });
    EXPECT_TRUE(moved.sent) << moved.sent.error().message();
    EXPECT_TRUE(moved.received) << moved.received.error().message();
    if (bytes.empty()) {
      const auto at = moved.received->tagged(name).front().begin;
      const auto *const from = static_cast<const unsigned char *>(at.pointer());
      good.assign(from, from + page());
    }
    source.reset();
    const auto a = arena(sendable());
    const auto back = prefix_cache::adopt(*a, *moved.received);
    EXPECT_EQ(a->stats().used, 0u);
    EXPECT_EQ(a->stats().cached, back ? entries.size() : 0u);
    empty(*a);
    return outcome(back);
  };
  EXPECT_TRUE(adopted({}));
  EXPECT_TRUE(adopted(good));
  auto bytes = good;
  bytes[7] = 1;  // longer than any memory
  EXPECT_TRUE(fails_with(adopted(bytes), errc::corrupt, "prefix_cache::adopt"));
  for (std::size_t cut = 0; cut < good[0]; cut += 29) {
    bytes = good;
    bytes[0] = static_cast<unsigned char>(cut);
    bytes[1] = 0;
    EXPECT_FALSE(adopted(bytes)) << cut;
    if (HasFailure()) break;
  }
  // The first entry's block, after the length, the version, the shape and the number of entries.
  const std::size_t at = 8 + 4 + 4 * 8 + 3 * 4 + 4;
  ASSERT_EQ(good[at], 6u);
  for (const unsigned block : {0u, 40u, 64u, 255u}) {  // twice, without memory, none, none
    bytes = good;
    bytes[at] = static_cast<unsigned char>(block);
    EXPECT_FALSE(adopted(bytes)) << block;
  }
}

TEST_F(prefix_cache_handoff_test, each_driver_call_fails_once) {
  constexpr const char *calls[] = {"cuMemCreate",
                                   "cuMemMap",
                                   "cuMemSetAccess",
                                   "cuMemUnmap",
                                   "cuMemExportToShareableHandle",
                                   "cuMemImportFromShareableHandle",
                                   "cuMemcpyHtoDAsync_v2",
                                   "cuMemcpyDtoH_v2",
                                   "cuMemAddressReserve",
                                   "cuStreamSynchronize",
                                   "cuCtxSynchronize"};
  expect_unreturnable();
  const auto o = sendable();
  const auto created = [&] {
    std::unique_ptr<kv::block_arena> out;
    while (!out) {
      if (auto made = kv::block_arena::create(dev(), o)) out = std::move(*made);
    }
    return out;
  };
  const std::uint64_t refused = refuse_each(calls, [&] {
    bool done = true;
    auto source = created();
    std::vector<kv::block_id> ids(12);
    if (!step(*source, 12)) {
      done = false;
      EXPECT_TRUE(step(*source, 12));
    }
    EXPECT_TRUE(source->allocate(ids));
    for (const kv::block_id b : ids) fill(*source, b);
    const auto entries = table(std::span(ids).first(10));
    auto moved = send_here(*source, entries);
    if (!moved.sent || !moved.received) {
      done = false;
      if (!moved.sent) {
        EXPECT_FALSE(moved.received);
        expect_filled(*source, ids);
      }
      if (!moved.received) {
        moved = send_here(*source, entries);
        EXPECT_TRUE(moved.sent) << moved.sent.error().message();
      }
    }
    if (!moved.received) {
      ADD_FAILURE() << moved.received.error().message();
      return true;
    }
    source.reset();
    const auto target = created();  // not before: all memory of the tag goes
    auto back = prefix_cache::adopt(*target, *moved.received);
    if (!back) {
      done = false;
      EXPECT_EQ(target->stats().used + target->stats().cached, 0u);
      back = prefix_cache::adopt(*target, *moved.received);
      EXPECT_TRUE(back) << back.error().message();
    }
    if (!moved.received->release(fence{})) {
      done = false;
      EXPECT_TRUE(moved.received->release(fence{}));
    }
    expect_cached(*target, entries);
    std::vector<kv::block_id> evicted;
    EXPECT_TRUE(target->evict(SIZE_MAX, evicted));
    if (!target->trim()) {
      done = false;
      EXPECT_TRUE(target->trim());
    }
    EXPECT_EQ(target->stats().mapped_bytes, 0u);
    return done;
  });
  EXPECT_GT(refused, 15u);
  std::printf("note: prefix caches that are handed off: %llu driver calls failed, one at a time\n",
              static_cast<unsigned long long>(refused));
  accept_background_errors();
}

TEST_F(prefix_cache_handoff_test, each_host_allocation_of_an_adoption_fails_once) {
  auto source = arena(sendable());
  const auto entries = fill_cache(*source);
  const auto moved = send_here(*source, entries);
  ASSERT_TRUE(moved.received) << moved.received.error().message();
  source.reset();
  const auto target = arena(sendable());
  const allocation_sweep all = fail_each_allocation(
      [&](failing_allocation &failing) {
        const auto back = failing([&] { return prefix_cache::adopt(*target, *moved.received); });
        EXPECT_EQ(target->stats().used, 0u);
        EXPECT_EQ(target->stats().cached, back ? entries.size() : 0u);
        if (back) expect_cached(*target, entries);
        std::vector<kv::block_id> evicted;
        ASSERT_TRUE(target->evict(SIZE_MAX, evicted));
        ASSERT_TRUE(target->trim());
        EXPECT_EQ(target->stats().mapped_bytes, 0u);
      },
      false, one_in(1));
  all.note("prefix caches that are adopted");
  EXPECT_GT(all.points, fewest_points(30));
}

}  // namespace
}  // namespace stillmap::testing
