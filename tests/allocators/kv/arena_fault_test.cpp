// The arenas with each of their driver calls and host allocations failing once: nothing is lost, what was refused can be
// had afterwards, and what blocks and sequences hold stays as it was.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/allocators/kv/block_memory.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory_sweep.h"
#include "tests/support/refuse_each.h"

namespace stillmap::testing {
namespace {

class kv_arena_faults : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    expect_unreturnable();
  }
  void TearDown() override {
    accept_background_errors();
    buffer_test::TearDown();
  }
  void mark(device_address at, int value) const { std::memset(at.pointer(), value, 64); }
  static int marked(device_address at) { return static_cast<const char *>(at.pointer())[63]; }
  void wait() const {
    const context_guard guard(dev().driver(), dev().context());
    (void)dev().driver().synchronize_context();
  }
  // Until it is done, which takes two tries at most. Whether it took one.
  template <class Act>
  bool soon(const Act &act) const {
    if (act()) return true;
    const auto again = act();
    EXPECT_TRUE(again) << again.error().message();
    return false;
  }

  std::unique_ptr<kv::block_arena> blocks() const {
    auto made = kv::block_arena::create(dev(), {.shape = {4, 2, page() / 64},
                                                .tokens_per_block = 4,
                                                .blocks = 64,
                                                .layers_per_range = 2,
                                                .spare_blocks = 0});
    return made ? std::move(*made) : nullptr;
  }
  std::unique_ptr<kv::block_memory> memory() const {
    auto made = kv::block_memory::create(
        dev(),
        {.shape = {4, 2, page() / 64}, .tokens_per_block = 4, .blocks = 64, .layers_per_range = 2});
    return made ? std::move(*made) : nullptr;
  }
  std::unique_ptr<kv::sequence_arena> sequences() const {
    auto made = kv::sequence_arena::create(dev(), {.shape = {4, 2, page() / 128},
                                                   .longest = 128,
                                                   .sequences = 8,
                                                   .layers_per_range = 2,
                                                   .spare_bytes = 0});
    return made ? std::move(*made) : nullptr;
  }
  static status step(kv::block_arena &a, std::size_t free) {
    const status prepared = a.prepare(free, stream_ref::legacy());
    const status begun = a.begin_step();
    return prepared ? begun : prepared;
  }
  static status step(kv::block_memory &m) {
    const status prepared = m.prepare(stream_ref::legacy());
    const status begun = m.begin_step();
    return prepared ? begun : prepared;
  }
  static status step(kv::sequence_arena &a) {
    const status prepared = a.prepare(stream_ref::legacy());
    const status begun = a.begin_step(stream_ref::legacy());
    return prepared ? begun : prepared;
  }

  bool use_blocks() const;
  bool use_memory() const;
  bool use_sequences() const;
};

constexpr const char *driver_calls[] = {
    "cuMemCreate",         "cuMemMap",        "cuMemSetAccess",      "cuMemUnmap",
    "cuMemRelease",        "cuEventCreate",   "cuEventRecord",       "cuEventQuery",
    "cuMemAddressReserve", "cuMemGetInfo_v2", "cuMemcpyDtoDAsync_v2"};

// A load that rises, falls and is compacted. Whether no step of it was refused.
bool kv_arena_faults::use_blocks() const {
  const auto a = blocks();
  if (!a) return false;
  bool done = true;
  const auto all_have = [&](std::size_t free) {
    done = soon([&] { return step(*a, free); }) && done;
    EXPECT_GE(a->stats().free, free);
  };
  all_have(32);
  std::vector<kv::block_id> ids(32);
  EXPECT_TRUE(a->allocate(ids));
  const std::size_t stride = a->layout().block_stride();
  std::vector<kv::block_id> stay, go;
  for (const kv::block_id b : ids) (b % 4 == 0 ? stay : go).push_back(b);
  for (const kv::block_id b : stay) mark(a->tensor(3, 1) + b * stride, static_cast<int>(b));
  EXPECT_TRUE(a->release(go));
  const auto is_as_it_was = [&](std::span<const int> values) {
    for (std::size_t i = 0; i < stay.size(); ++i) {
      EXPECT_EQ(marked(a->tensor(3, 1) + stay[i] * stride), values[i]);
    }
  };
  const std::vector<int> values(stay.begin(), stay.end());
  done = soon([&] {
           auto moves = a->compact(SIZE_MAX, stream_ref::legacy());
           wait();
           if (moves) {
             for (const kv::block_move m : *moves) {
               std::replace(stay.begin(), stay.end(), m.from, m.to);
             }
           }
           is_as_it_was(values);
           return moves;
         }) &&
         done;
  done = soon([&] { return a->trim(); }) && done;
  EXPECT_EQ(a->stats().mapped_bytes, 2 * 2 * page());
  is_as_it_was(values);
  EXPECT_EQ(a->stats().used, 8u);
  done = a->missing_for(8).has_value() && done;
  all_have(20);
  EXPECT_TRUE(a->release(stay));
  done = soon([&] { return a->trim(); }) && done;
  EXPECT_EQ(a->stats().mapped_bytes, 0u);
  return done;
}

// Blocks that the caller names, of which some lose their memory again. Whether no step of it was refused.
bool kv_arena_faults::use_memory() const {
  const auto m = memory();
  if (!m) return false;
  bool done = true;
  const std::size_t stride = m->layout().block_stride();
  const auto commit = [&](std::size_t first, std::size_t count) {
    done = soon([&] {
             EXPECT_TRUE(m->commit(first, count));
             return step(*m);
           }) &&
           done;
    EXPECT_TRUE(m->is_committed(first, count));
  };
  commit(10, 20);
  for (std::size_t b = 10; b < 30; ++b) mark(m->tensor(3, 1) + b * stride, static_cast<int>(b));
  EXPECT_TRUE(m->decommit(14, 9));
  done = soon([&] { return step(*m); }) && done;
  commit(40, 9);
  EXPECT_TRUE(m->decommit(45, 19));
  done = soon([&] { return m->trim(); }) && done;
  EXPECT_EQ(m->stats().mapped_bytes, (2 + 3 + 2) * m->layout().group_bytes());
  commit(16, 4);
  for (std::size_t b = 10; b < 30; ++b) {
    if (b >= 14 && b < 23) continue;
    EXPECT_EQ(marked(m->tensor(3, 1) + b * stride), static_cast<int>(b));
  }
  EXPECT_TRUE(m->decommit(0, 64));
  done = soon([&] { return m->trim(); }) && done;
  EXPECT_EQ(m->stats().mapped_bytes, 0u);
  EXPECT_EQ(m->stats().committed + m->stats().pending, 0u);
  return done;
}

// A prefix, two forks of it, of which one grows, and the end of the first.
bool kv_arena_faults::use_sequences() const {
  const auto a = sequences();
  if (!a) return false;
  bool done = true;
  const std::size_t stride = a->layout().block_stride();
  const auto grow = [&](kv::sequence_id s, std::size_t tokens) {
    done = soon([&] {
             EXPECT_TRUE(a->reserve(s, tokens));
             return step(*a);
           }) &&
           done;
    EXPECT_GE(a->capacity(s), tokens);
  };
  const auto prefix = a->add().value();
  grow(prefix, 80);
  for (std::size_t t = 0; t < 80; ++t) {
    mark(a->tensor(prefix, 3, 1) + t * stride, static_cast<int>(t));
  }
  // A fork whose pages or copy were refused is removed, and made again.
  const auto forked = [&] {
    for (int i = 0; i < 3; ++i) {
      const auto fork = a->fork(prefix, 75).value();
      const status begun = step(*a);
      wait();
      if (begun && a->capacity(fork) >= 75) return fork;
      done = false;
      EXPECT_TRUE(a->remove(fork));
    }
    ADD_FAILURE() << "no fork";
    return prefix;
  };
  const auto first = forked(), second = forked();
  grow(second, 120);
  EXPECT_TRUE(a->remove(prefix));
  (void)step(*a);
  done = soon([&] { return a->trim(); }) && done;
  for (const auto s : {first, second}) {
    for (std::size_t t = 0; t < 75; ++t) {
      EXPECT_EQ(marked(a->tensor(s, 3, 1) + t * stride), static_cast<int>(t));
    }
    EXPECT_TRUE(a->remove(s));
  }
  done = soon([&] { return step(*a); }) && done;
  done = soon([&] { return a->trim(); }) && done;
  EXPECT_EQ(a->stats().mapped_bytes, 0u);
  return done;
}

TEST_F(kv_arena_faults, each_driver_call_of_blocks) {
  ASSERT_TRUE(use_blocks());
  const std::uint64_t refused = refuse_each(driver_calls, [&] { return use_blocks(); });
  EXPECT_GT(refused, 20u);
  std::printf("note: KV arena: %llu driver calls of blocks failed, one at a time\n",
              static_cast<unsigned long long>(refused));
}

TEST_F(kv_arena_faults, each_driver_call_of_named_blocks) {
  ASSERT_TRUE(use_memory());
  const std::uint64_t refused = refuse_each(driver_calls, [&] { return use_memory(); });
  EXPECT_GT(refused, 15u);
  std::printf("note: KV arena: %llu driver calls of named blocks failed, one at a time\n",
              static_cast<unsigned long long>(refused));
}

TEST_F(kv_arena_faults, each_driver_call_of_sequences) {
  ASSERT_TRUE(use_sequences());
  const std::uint64_t refused = refuse_each(driver_calls, [&] { return use_sequences(); });
  EXPECT_GT(refused, 20u);
  std::printf("note: KV arena: %llu driver calls of sequences failed, one at a time\n",
              static_cast<unsigned long long>(refused));
}

// ---- host memory -----------------------------------------------------------------------------------

TEST_F(kv_arena_faults, each_host_allocation_of_the_caller) {
  allocation_sweep all;
  // Each operation is refused as a whole, and done when it is asked for again.
  const auto sweep = [&](const auto &make, const auto &before, const auto &operation) {
    all += fail_each_allocation([&](failing_allocation &failing) {
      const auto a = make();
      ASSERT_TRUE(a);
      before(*a);
      const auto once = failing([&] { return operation(*a); });
      if (!once) ASSERT_DONE(operation(*a));
    });
  };
  const auto make_blocks = [&] { return blocks(); };
  const auto make_sequences = [&] { return sequences(); };
  const auto in_use = [](kv::block_arena &a) {
    ASSERT_DONE(step(a, 32));
    std::vector<kv::block_id> ids(32), every_second;
    ASSERT_DONE(a.allocate(ids));
    for (const kv::block_id b : ids) {
      if (b % 2 == 0) every_second.push_back(b);
    }
    ASSERT_DONE(a.release(every_second));
    ASSERT_DONE(a.release({&ids[1], 1}, kv::block_arena::contents::keep));
  };
  const auto prefix = [](kv::sequence_arena &a) {
    const auto s = a.add().value();
    ASSERT_DONE(a.reserve(s, 20));
    ASSERT_DONE(step(a));
  };
  all += fail_each_allocation([&](failing_allocation &failing) {
    const auto made = failing([&] {
      return kv::block_arena::create(dev(), {.shape = {4, 2, page()}, .blocks = 9});
    });
    EXPECT_EQ(made.has_value(), failing.done());
  });
  all += fail_each_allocation([&](failing_allocation &failing) {
    const auto made = failing([&] {
      return kv::sequence_arena::create(dev(),
                                        {.shape = {4, 2, page()}, .longest = 9, .sequences = 9});
    });
    EXPECT_EQ(made.has_value(), failing.done());
  });
  all += fail_each_allocation([&](failing_allocation &failing) {
    const auto made = failing([&] {
      return kv::block_memory::create(dev(), {.shape = {4, 2, page()}, .blocks = 9});
    });
    EXPECT_EQ(made.has_value(), failing.done());
  });
  const auto named = [](kv::block_memory &m) { return m.commit(5, 20); };
  const auto make_memory = [&] { return memory(); };
  sweep(
      make_memory, [](auto &) {},
      [&](auto &m) {
        if (const status r = named(m); !r) return r;
        return step(m);
      });
  sweep(
      make_memory,
      [&](auto &m) {
        ASSERT_DONE(named(m));
        ASSERT_DONE(step(m));
        ASSERT_DONE(m.decommit(0, 64));
      },
      [](auto &m) { return outcome(m.trim()); });
  sweep(
      make_blocks, [](auto &) {}, [](auto &a) { return step(a, 12); });
  sweep(make_blocks, in_use, [](auto &a) { return outcome(a.compact(99, stream_ref::legacy())); });
  sweep(make_blocks, in_use, [](auto &a) { return outcome(a.trim()); });
  sweep(make_blocks, in_use, [](auto &a) {
    std::vector<kv::block_id> evicted;
    return a.evict(1, evicted);
  });
  sweep(
      make_sequences, [](auto &) {},
      [](auto &a) {
        const auto s = a.add();
        if (!s) return outcome(s);
        if (const status r = a.reserve(*s, 20); !r) return r;
        return step(a);
      });
  sweep(make_sequences, prefix, [](auto &a) { return outcome(a.fork({0, 1}, 19)); });
  all.note("the KV arenas");
  EXPECT_GT(all.points, fewest_points(40));
}

// Those of the worker: a step is refused, or not, and the next one has what it wants.
TEST_F(kv_arena_faults, each_host_allocation_of_the_worker) {
  std::size_t points = 0, refused = 0;
  for (std::uint64_t n = 0;; ++n) {
    SCOPED_TRACE("allocation " + std::to_string(n));
    failing_thread thread;
    {
      const auto at_first_map =
          dev().space().on_backing_change([&](const backing_event &) { thread.begin(); });
      const auto a = sequences();
      const auto s = a->add().value();
      ASSERT_DONE(a->reserve(s, 20));
      thread.arm(n);
      ASSERT_DONE(step(*a));
      bool done = true;
      const auto soon_has = [&](kv::sequence_id of, std::size_t tokens) {
        for (int i = 0; i < 2; ++i) {
          ASSERT_DONE(a->reserve(of, tokens));
          const status begun = step(*a);
          done = done && begun.has_value();
          EXPECT_TRUE(begun || begun.error().is(errc::out_of_memory));
          if (a->capacity(of) >= tokens) return;
        }
        FAIL() << "no memory at the second try";
      };
      soon_has(s, 70);
      auto fork = a->fork(s, 70).value();
      if (const status begun = step(*a); !begun) {
        done = false;
        ASSERT_DONE(a->remove(fork));
        ASSERT_DONE(step(*a));
        fork = a->fork(s, 70).value();
        ASSERT_DONE(step(*a));
      }
      EXPECT_GE(a->capacity(fork), 70u);
      ASSERT_DONE(a->remove(s));
      done = step(*a).has_value() && done;
      soon_has(fork, 100);
      refused += done ? 0 : 1;
    }
    if (!thread.happened()) break;
    ++points;
  }
  EXPECT_GT(points, 20u);
  EXPECT_GT(refused, 10u);
  std::printf("note: KV arena: %zu host allocations of the worker failed, %zu steps were refused\n",
              points, refused);
}

}  // namespace
}  // namespace stillmap::testing
