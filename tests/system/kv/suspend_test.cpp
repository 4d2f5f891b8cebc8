// The arenas' memory suspended by its tag and resumed: every byte, and what the arenas do meanwhile.
#include "stillmap/checkpoint/suspend/suspender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <thread>

#include "stillmap/allocators/kv/block_memory.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "tests/support/refuse_each.h"
#include "tests/support/stream_gate.h"
#include "tests/system/kv/kv_test.h"

namespace stillmap::testing {
namespace {

using checkpoint::backing_store;
using checkpoint::suspender;

class kv_suspend : public kv_test {
 protected:
  std::unique_ptr<suspender> make_suspender() const {
    auto made = suspender::create(dev());
    EXPECT_TRUE(made);
    return made ? std::move(*made) : nullptr;
  }
  std::size_t suspended_bytes() const { return dev().space().stats().suspended_bytes; }
};

TEST_F(kv_suspend, blocks_come_back_with_every_byte) {
  const auto s = make_suspender();
  const auto a = arena(options());
  const auto other = arena(options("other"));
  auto used = filled_blocks(*a, 13), cached = filled_blocks(*a, 9);
  const auto untouched = filled_blocks(*other, 3, 1);
  ASSERT_TRUE(a->release(cached, kv::block_arena::contents::keep));
  const std::size_t mapped = a->stats().mapped_bytes;
  for (const auto store : {backing_store::pinned_host, backing_store::file}) {
    checkpoint::suspend_options how;
    how.store = store;
    const auto gone = s->suspend("cache", how);
    ASSERT_TRUE(gone) << gone.error().message();
    EXPECT_EQ(gone->released.bytes(), mapped);
    // Only the ids change meanwhile: there is no memory that a step could use.
    EXPECT_TRUE(
        fails_with(a->prepare(30, stream_ref::legacy()), errc::busy, "kv::block_arena::prepare"));
    EXPECT_TRUE(fails_with(a->begin_step(), errc::busy, "kv::block_arena::begin_step"));
    EXPECT_TRUE(fails_with(outcome(a->compact(9, stream_ref::legacy())), errc::busy,
                           "kv::block_arena::compact"));
    EXPECT_TRUE(fails_with(outcome(a->trim()), errc::busy, "kv::block_arena::trim"));
    std::vector<kv::block_id> one(1);
    ASSERT_TRUE(a->allocate(one));
    ASSERT_TRUE(a->release(one));
    ASSERT_TRUE(a->retain(cached));
    ASSERT_TRUE(a->release(cached, kv::block_arena::contents::keep));
    ASSERT_TRUE(step(*other, 8));
    EXPECT_EQ(a->stats().mapped_bytes, mapped);

    ASSERT_TRUE(s->resume("cache"));
    // Nothing that was refused is left behind.
    EXPECT_TRUE(a->begin_step());
    EXPECT_EQ(a->stats().used, 13u);
    EXPECT_EQ(a->stats().cached, 9u);
    expect_filled(*a, used);
    expect_filled(*a, cached);
    expect_filled(*other, untouched, 1);
    ASSERT_TRUE(step(*a, 30));
    EXPECT_GE(a->stats().free, 30u);
    ASSERT_TRUE(a->trim());
    EXPECT_EQ(a->stats().mapped_bytes, mapped);
  }
  // What was freed while the memory was away gives back its pages afterwards.
  ASSERT_TRUE(s->suspend("cache"));
  ASSERT_TRUE(a->release(used));
  ASSERT_TRUE(a->drop(cached));
  ASSERT_TRUE(s->resume("cache"));
  ASSERT_TRUE(step(*a, 0));
  EXPECT_EQ(a->stats().mapped_bytes, 0u);
}

TEST_F(kv_suspend, named_blocks_come_back_with_every_byte) {
  const auto s = make_suspender();
  const kv::block_arena_options like = options();
  auto made = kv::block_memory::create(dev(), {.shape = like.shape,
                                               .tokens_per_block = like.tokens_per_block,
                                               .blocks = like.blocks,
                                               .layers_per_range = like.layers_per_range,
                                               .tag = like.tag});
  ASSERT_TRUE(made) << made.error().message();
  kv::block_memory &m = **made;
  const auto step = [&] { return m.prepare(stream_ref::legacy()) && m.begin_step(); };
  ASSERT_TRUE(m.commit(3, 5));
  ASSERT_TRUE(step());
  auto *const at =
      static_cast<unsigned char *>((m.tensor(1, 1) + 7 * m.layout().block_stride()).pointer());
  std::fill_n(at, m.layout().block_bytes(), static_cast<unsigned char>(201));
  ASSERT_TRUE(s->suspend("cache"));
  ASSERT_TRUE(m.commit(20, 4));
  EXPECT_TRUE(fails_with(m.prepare(stream_ref::legacy()), errc::busy, "kv::block_memory::prepare"));
  EXPECT_TRUE(fails_with(m.begin_step(), errc::busy, "kv::block_memory::begin_step"));
  EXPECT_TRUE(fails_with(outcome(m.trim()), errc::busy, "kv::block_memory::trim"));
  ASSERT_TRUE(s->resume("cache"));
  EXPECT_TRUE(m.begin_step()) << "nothing that was refused is left behind";
  EXPECT_TRUE(m.is_committed(3, 5));
  EXPECT_EQ(std::count(at, at + m.layout().block_bytes(), 201),
            static_cast<std::ptrdiff_t>(m.layout().block_bytes()));
  EXPECT_FALSE(m.is_committed(20));
  ASSERT_TRUE(step());
  EXPECT_TRUE(m.is_committed(20, 4)) << "the wish has stayed";
}

// A resumed arena may have pages that another pool made: they are moved, compacted and trimmed as its own.
TEST_F(kv_suspend, resumed_memory_is_compacted) {
  const auto s = make_suspender();
  const auto a = arena(options());
  const auto ids = filled_blocks(*a, 32);
  std::vector<kv::block_id> stay, go;
  for (const kv::block_id b : ids) (b % 4 == 0 ? stay : go).push_back(b);
  ASSERT_TRUE(s->suspend("cache"));
  ASSERT_TRUE(s->resume("cache"));
  ASSERT_TRUE(a->release(go));
  const auto moves = a->compact(SIZE_MAX, stream_ref::legacy());
  ASSERT_TRUE(moves) << moves.error().message();
  EXPECT_FALSE(moves->empty());
  wait();
  const std::size_t stride = a->layout().block_stride();
  for (const kv::block_move m : *moves) {
    // Its bytes are those of the block that it was.
    for (const std::uint32_t layer : {0u, 3u}) {
      EXPECT_EQ(*static_cast<unsigned char *>((a->tensor(layer, 1) + m.to * stride).pointer()),
                static_cast<unsigned char>(m.from * 37 + (layer * 2 + 1) * 11));
    }
    std::erase(stay, m.from);
  }
  expect_filled(*a, stay);
  ASSERT_TRUE(a->trim());
  EXPECT_EQ(a->stats().mapped_bytes, 2 * page());
}

TEST_F(kv_suspend, unmapping_that_waits_for_a_fence_is_waited_for) {
  const auto s = make_suspender();
  const auto a = arena(options());
  const stream work = make_stream();
  const auto stay = filled_blocks(*a, 8), go = filled_blocks(*a, 16);
  hold(work.get());
  ASSERT_TRUE(a->release(go));
  ASSERT_TRUE(a->prepare(0, work));
  ASSERT_TRUE(a->begin_step());
  EXPECT_EQ(dev().space().stats().retiring_mappings, 4u);
  std::thread opener([&] { release(work.get()); });
  const auto gone = s->suspend("cache");
  opener.join();
  ASSERT_TRUE(gone) << gone.error().message();
  EXPECT_EQ(gone->bytes, 2 * page());
  EXPECT_EQ(dev().space().stats().retiring_mappings, 0u);
  ASSERT_TRUE(s->resume("cache"));
  expect_filled(*a, stay);
  ASSERT_TRUE(step(*a, 16));
  EXPECT_EQ(a->stats().free, 16u);
}

TEST_F(kv_suspend, a_suspension_that_fails_leaves_the_arena_as_it_was) {
  constexpr const char *calls[] = {
      "cuMemCreate",    "cuMemMap",           "cuMemSetAccess",       "cuMemUnmap",
      "cuMemRelease",   "cuEventRecord",      "cuMemcpyDtoHAsync_v2", "cuMemcpyHtoDAsync_v2",
      "cuMemHostAlloc", "cuStreamSynchronize"};
  expect_unreturnable();
  const auto s = make_suspender();
  const auto a = arena(options());
  const auto ids = filled_blocks(*a, 12);
  const std::uint64_t refused = refuse_each(calls, [&] {
    bool done = true;
    auto gone = s->suspend("cache");
    if (!gone) {
      done = false;
      EXPECT_EQ(suspended_bytes(), 0u);
      expect_filled(*a, ids);
      EXPECT_TRUE(step(*a, 20));
      EXPECT_TRUE(a->trim());
      gone = s->suspend("cache");
      EXPECT_TRUE(gone) << gone.error().message();
    }
    auto back = s->resume("cache");
    if (!back) {
      done = false;
      EXPECT_TRUE(fails_with(a->begin_step(), errc::busy, "kv::block_arena::begin_step"));
      back = s->resume("cache");
      EXPECT_TRUE(back) << back.error().message();
    }
    expect_filled(*a, ids);
    status more = step(*a, 20);
    if (!more) {
      done = false;
      more = step(*a, 20);
    }
    EXPECT_TRUE(more);
    EXPECT_GE(a->stats().free, 20u);
    if (!a->trim()) {
      done = false;
      EXPECT_TRUE(a->trim());
    }
    EXPECT_EQ(a->stats().mapped_bytes, 2 * 2 * page());
    return done;
  });
  EXPECT_GT(refused, 10u);
  accept_background_errors();
}

// The pages of a prefix are saved once, and shared again.
TEST_F(kv_suspend, sequences_come_back_with_every_byte) {
  const auto s = make_suspender();
  auto made = kv::sequence_arena::create(dev(), {.shape = {4, 2, page() / 128},
                                                 .longest = 128,
                                                 .sequences = 8,
                                                 .layers_per_range = 4,
                                                 .spare_bytes = 0,
                                                 .tag = "cache"});
  ASSERT_TRUE(made);
  kv::sequence_arena &a = **made;
  const auto next = [&] {
    const status prepared = a.prepare(stream_ref::legacy());
    const status begun = a.begin_step(stream_ref::legacy());
    wait();
    return prepared ? begun : prepared;
  };
  const auto bytes_of = [&](kv::sequence_id q, std::size_t tokens) {
    return std::span(static_cast<unsigned char *>(a.tensor(q, 0, 0).pointer()),
                     tokens * a.layout().block_stride());
  };
  const auto prompt = a.add().value();
  ASSERT_TRUE(a.reserve(prompt, 80));
  ASSERT_TRUE(next());
  const auto first = pattern(80 * a.layout().block_stride(), 5);
  std::copy(first.begin(), first.end(), bytes_of(prompt, 80).begin());
  const auto fork = a.fork(prompt, 75).value();
  ASSERT_TRUE(next());
  const std::size_t memory = a.stats().memory_bytes;
  const auto is_whole = [&] {
    return std::equal(first.begin(), first.end(), bytes_of(prompt, 80).begin()) &&
           std::equal(first.begin(), first.begin() + 75 * a.layout().block_stride(),
                      bytes_of(fork, 75).begin());
  };
  ASSERT_TRUE(is_whole());
  const auto gone = s->suspend("cache");
  ASSERT_TRUE(gone) << gone.error().message();
  EXPECT_EQ(gone->bytes, memory);
  EXPECT_LT(memory, a.stats().mapped_bytes);
  EXPECT_TRUE(
      fails_with(a.prepare(stream_ref::legacy()), errc::busy, "kv::sequence_arena::prepare"));
  EXPECT_TRUE(
      fails_with(a.begin_step(stream_ref::legacy()), errc::busy, "kv::sequence_arena::begin_step"));
  EXPECT_TRUE(fails_with(outcome(a.trim()), errc::busy, "kv::sequence_arena::trim"));
  // Wishes of that time are fulfilled afterwards.
  const auto late = a.fork(fork, 70).value();
  ASSERT_TRUE(a.reserve(prompt, 120));
  ASSERT_TRUE(s->resume("cache"));
  EXPECT_TRUE(is_whole());
  ASSERT_TRUE(next());
  EXPECT_TRUE(is_whole());
  EXPECT_GE(a.capacity(prompt), 120u);
  EXPECT_GE(a.capacity(late), 70u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 70 * a.layout().block_stride(),
                         bytes_of(late, 70).begin()));
  for (const auto q : {prompt, fork, late}) ASSERT_TRUE(a.remove(q));
  ASSERT_TRUE(next());
  ASSERT_TRUE(a.trim());
  EXPECT_EQ(a.stats().mapped_bytes, 0u);
}

}  // namespace
}  // namespace stillmap::testing
