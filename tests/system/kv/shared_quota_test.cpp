// Arenas that share a quota: an engine that needs memory gets that of another one's cached prefixes, in one process and
// between two. docs/kv_arena.md#under-a-quota
#include "stillmap/allocators/shared_quota.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "stillmap/allocators/kv/cache_offer.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "tests/support/unique_name.h"
#include "tests/system/kv/kv_test.h"
#include "tests/system/sharing/task_process.h"

namespace stillmap::testing {
namespace {

using kv::block_arena;
using kv::block_id;

class kv_shared_quota : public kv_test {
 protected:
  static constexpr std::size_t groups = 16, used_groups = 4, asked_groups = 6, in_group = 8;

  // An engine: a participant, and an arena whose pages it counts.
  struct engine {
    std::shared_ptr<shared_quota> quota;
    std::shared_ptr<page_pool> pool;
    std::unique_ptr<block_arena> cache;
    std::unique_ptr<kv::cache_offer> offer;
  };
  std::size_t group() const { return 2 * page(); }
  engine join(const std::string &file, bool offers) const {
    engine e;
    e.quota = shared_quota::open(file, {.limit = groups * group(), .timeout = patience}).value();
    e.pool = page_pool::create(dev(), {.keep_free = 0, .quota = e.quota}).value();
    auto o = options("cache", groups * in_group);
    o.pool = e.pool;
    e.cache = arena(o);
    if (offers) {
      EXPECT_TRUE(e.quota->start_thread());
      e.offer = kv::cache_offer::create(e.quota).value();
    }
    return e;
  }
  // All of the quota: blocks in use, and prefixes that are cached, the oldest first.
  struct contents {
    std::vector<block_id> used;
    std::vector<std::vector<block_id>> cached;
  };
  contents fill_all(block_arena &a) const {
    contents out{.used = filled_blocks(a, used_groups * in_group), .cached = {}};
    for (std::size_t i = used_groups; i < groups; ++i) {
      out.cached.push_back(filled_blocks(a, in_group));
      EXPECT_TRUE(a.release(out.cached.back(), block_arena::contents::keep));
    }
    EXPECT_EQ(a.stats().mapped_bytes, groups * group());
    return out;
  }
  // The oldest have gone, and the others have every byte. Empty: so it is.
  static std::string check_after(const block_arena &a, const contents &c,
                                 std::vector<block_id> evicted) {
    std::vector<block_id> oldest;
    for (std::size_t i = 0; i < asked_groups; ++i) {
      oldest.insert(oldest.end(), c.cached[i].begin(), c.cached[i].end());
    }
    std::sort(oldest.begin(), oldest.end());
    std::sort(evicted.begin(), evicted.end());
    if (evicted != oldest) return std::to_string(evicted.size()) + " blocks were evicted";
    const auto holds = [&](std::span<const block_id> ids) {
      return std::all_of(ids.begin(), ids.end(), [&](block_id b) { return is_filled(a, b); });
    };
    if (!holds(c.used)) return "used blocks have other contents";
    for (std::size_t i = asked_groups; i < c.cached.size(); ++i) {
      if (!holds(c.cached[i])) return "cached blocks have other contents";
    }
    return "";
  }
  // What an engine does on a thread of its own where missing_for() says that memory is missing.
  static status get_room(const engine &e, std::size_t bytes) {
    if (status s = e.quota->make_room(bytes); !s) return s;
    const status made = e.pool->prepare(bytes);
    e.quota->end_room();
    return made;
  }
  static bool soon(const std::function<bool()> &is_so) {
    const auto until = std::chrono::steady_clock::now() + patience;
    while (!is_so()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  static constexpr std::chrono::minutes patience{2};
};

TEST_F(kv_shared_quota, cached_prefixes_of_one_arena_become_blocks_of_another) {
  const std::string file = "/dev/shm/" + unique_name("stillmap-kv-quota");
  {
    const engine a = join(file, true), b = join(file, false);
    const contents all = fill_all(*a.cache);
    const std::size_t blocks = asked_groups * in_group;
    EXPECT_EQ(b.cache->missing_for(blocks).value(), asked_groups * group());
    // The step itself asks nobody: it is short, and goes on.
    const status at_once = step(*b.cache, blocks);
    ASSERT_FALSE(at_once);
    EXPECT_TRUE(at_once.error().is(errc::out_of_memory)) << at_once.error().message();
    EXPECT_EQ(b.cache->stats().free, 0u);

    std::vector<block_id> evicted;
    auto room = std::async(std::launch::async, [&] { return get_room(b, asked_groups * group()); });
    EXPECT_TRUE(soon([&] {
      EXPECT_TRUE(a.cache->begin_step());
      if (a.offer->wanted() != 0) {
        EXPECT_TRUE(a.offer->give(*a.cache, 0, evicted));
      }
      EXPECT_TRUE(a.cache->prepare(0, stream_ref::legacy()));
      return room.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    const status got = room.get();
    ASSERT_TRUE(got) << got.error().message();
    EXPECT_EQ(b.cache->missing_for(blocks).value(), 0u);
    EXPECT_EQ(b.cache->missing_for(blocks + 1).value(), group());
    const auto theirs = filled_blocks(*b.cache, blocks, 1);
    EXPECT_EQ(check_after(*a.cache, all, evicted), "");
    expect_filled(*b.cache, theirs, 1);
    EXPECT_EQ(a.quota->stats()->reserved, groups * group());
  }
  ASSERT_TRUE(shared_quota::remove(file));
}

TEST_F(kv_shared_quota, nobody_waits_longer_than_the_deadline_for_an_engine_that_never_gives) {
  const std::string file = "/dev/shm/" + unique_name("stillmap-kv-quota");
  {
    const engine a = join(file, true);
    const contents all = fill_all(*a.cache);
    const auto other =
        shared_quota::open(file, {.timeout = std::chrono::milliseconds(200)}).value();
    const status room = other->make_room(group());
    ASSERT_FALSE(room);
    EXPECT_TRUE(room.error().is(errc::busy));
    EXPECT_NE(room.error().message().find("process " + std::to_string(::getpid())),
              std::string::npos)
        << room.error().message();
    EXPECT_NE(a.offer->wanted(), 0u) << "it cannot know that nobody waits any more";
    std::vector<block_id> evicted;
    EXPECT_EQ(a.offer->give(*a.cache, 0, evicted).value(), 0u);
    EXPECT_EQ(a.offer->wanted(), 0u);
    EXPECT_TRUE(evicted.empty());
  }
  ASSERT_TRUE(shared_quota::remove(file));
}

TEST_F(kv_shared_quota, missing_for_knows_the_limit_of_the_pool_and_the_quota) {
  const std::string file = "/dev/shm/" + unique_name("stillmap-kv-quota");
  {
    const engine a = join(file, false);
    const auto limited = page_pool::create(dev(), {.limit = 3 * group()}).value();
    auto o = options();
    o.pool = limited;
    const auto b = arena(o);
    EXPECT_EQ(b->missing_for(4 * in_group).value(), group());
    EXPECT_EQ(b->missing_for(3 * in_group).value(), 0u);
    ASSERT_TRUE(a.quota->reserve((groups - 5) * group()));
    EXPECT_EQ(a.cache->missing_for(5 * in_group).value(), 0u);
    EXPECT_EQ(a.cache->missing_for(8 * in_group).value(), 3 * group());
    // 16 tokens in a page group of one page.
    const auto s = kv::sequence_arena::create(dev(), {.shape = {4, 2, page() / 128},
                                                      .longest = 512,
                                                      .sequences = 2,
                                                      .layers_per_range = 4,
                                                      .pool = a.pool})
                       .value();
    EXPECT_EQ(s->missing_for(160).value(), 0u);
    EXPECT_EQ(s->missing_for(192).value(), 2 * page());
    ASSERT_TRUE(a.quota->release((groups - 5) * group()));
  }
  ASSERT_TRUE(shared_quota::remove(file));
}

TEST_F(kv_shared_quota, cached_prefixes_become_blocks_of_another_process) {
  const std::string shm = "/dev/shm/";
  if (task_role() == "cache") {  // gives until the other has come and gone
    const engine a = join(shm + shared_name() + ".quota", true);
    const contents all = fill_all(*a.cache);
    std::vector<block_id> evicted;
    bool came = false;
    const bool gone = soon([&] {
      if (!a.cache->begin_step()) report_and_end("failed: begin_step");
      if (a.offer->wanted() != 0 && !a.offer->give(*a.cache, 0, evicted)) {
        report_and_end("failed: give");
      }
      if (!a.cache->prepare(0, stream_ref::legacy())) report_and_end("failed: prepare");
      const std::size_t participants = a.quota->stats()->participants.size();
      came = came || participants == 2;
      return came && participants == 1;
    });
    const std::string wrong =
        gone ? check_after(*a.cache, all, evicted) : "the other one has not come and gone";
    report_and_end(wrong.empty() ? "done" : "failed: " + wrong);
  }
  if (task_role() == "needs") {
    // Until the other's cache is full.
    const std::string file = shm + shared_name() + ".quota";
    const bool full = soon([&] {
      const auto now = shared_quota::stats_of(file);
      return now && now->reserved == groups * group();
    });
    if (!full) report_and_end("failed: the other's cache is not full");
    std::string wrong;
    {
      const engine b = join(file, false);
      if (const status got = get_room(b, asked_groups * group()); !got) {
        report_and_end("failed: " + got.error().message());
      }
      const auto mine = filled_blocks(*b.cache, asked_groups * in_group, 1);
      for (const block_id id : mine) {
        if (!is_filled(*b.cache, id, 1)) wrong = "failed: other contents";
      }
    }
    report_and_end(wrong.empty() ? "done" : wrong);
  }
  const std::string name = unique_name("stillmap-kv-processes");
  {
    task_process cache("cache", name, "memory=512M,lazy"), needs("needs", name, "memory=512M,lazy");
    EXPECT_EQ(needs.report(), "done");
    EXPECT_EQ(cache.report(), "done");
  }
  EXPECT_TRUE(shared_quota::remove(shm + name + ".quota"));
  std::filesystem::remove(shm + "hostcuda." + std::to_string(::getuid()) + '.' + name);
}

}  // namespace
}  // namespace stillmap::testing
