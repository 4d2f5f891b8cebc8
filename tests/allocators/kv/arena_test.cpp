// What the arenas promise: driver calls, memory, addresses, errors.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/remap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/captured_graph.h"
#include "tests/support/host_memory.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using kv::block_id;
using testing::fails_with;
using testing::outcome;

class kv_arena : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    opened_maps_ = calls("cuMemMap");
    opened_unmaps_ = calls("cuMemUnmap");
  }
  // Four blocks of four tokens in a page group, which is a page in each of two ranges.
  std::unique_ptr<kv::block_arena> block_arena(std::size_t blocks, std::size_t spare = 0) const {
    return kv::block_arena::create(dev(), {.shape = {4, 2, page() / 64},
                                           .tokens_per_block = 4,
                                           .blocks = blocks,
                                           .layers_per_range = 2,
                                           .spare_blocks = spare})
        .value();
  }
  // 16 tokens in a page group of one page.
  std::unique_ptr<kv::sequence_arena> sequence_arena(std::size_t longest, std::size_t sequences,
                                                     std::size_t spare_bytes = 0) const {
    return kv::sequence_arena::create(dev(), {.shape = {4, 2, page() / 128},
                                              .longest = longest,
                                              .sequences = sequences,
                                              .layers_per_range = 4,
                                              .spare_bytes = spare_bytes})
        .value();
  }
  static std::uint64_t calls(const char *name) { return testing::hostcuda_control::calls(name); }
  static std::uint64_t all_calls() { return calls(nullptr); }
  // The calls of a test begin after the device was opened.
  std::uint64_t maps() const { return calls("cuMemMap") - opened_maps_; }
  std::uint64_t unmaps() const { return calls("cuMemUnmap") - opened_unmaps_; }
  void wait() const {
    const context_guard guard(dev().driver(), dev().context());
    ASSERT_DONE(dev().driver().synchronize_context());
  }
  template <class Arena>
  void step(Arena &a) {
    ASSERT_DONE(a.prepare(stream_ref::legacy()));
    ASSERT_DONE(a.begin_step(stream_ref::legacy()));
  }
  void step(kv::block_arena &a, std::size_t blocks) {
    ASSERT_DONE(a.prepare(blocks, stream_ref::legacy()));
    ASSERT_DONE(a.begin_step());
  }
  // As suspender::forget() does it.
  void forget(virtual_range pages) const {
    remap_plan away({});
    away.suspend(pages, 7);
    ASSERT_DONE(dev().space().apply(std::move(away)));
    dev().space().release_suspended(pages, 7);
  }
  static ::testing::AssertionResult says_forgotten(const status &s, const char *operation) {
    if (!s && s.error().message().find("forgotten") == std::string::npos) {
      return ::testing::AssertionFailure() << s.error().message();
    }
    return fails_with(s, errc::busy, operation);
  }
  std::size_t device_bytes() const { return dev().space().stats().physical.bytes(); }

 private:
  std::uint64_t opened_maps_ = 0, opened_unmaps_ = 0;
};

// ---- layouts ---------------------------------------------------------------------------------------

TEST_F(kv_arena, the_rule_of_layouts) {
  const auto layers = [&](kv::shape s) {
    return kv::layout::create(s, 16, std::size_t{2} << 20).value().layers_per_range();
  };
  EXPECT_EQ(layers({32, 2, 2048}), 8u);   // Llama 3 8B: 64 tokens in a page group of 8 MiB
  EXPECT_EQ(layers({80, 2, 2048}), 8u);   // Llama 3 70B
  EXPECT_EQ(layers({61, 1, 1152}), 61u);  // DeepSeek V3: 61 is prime
  EXPECT_EQ(layers({2, 1, 64}), 2u);      // no number will do
  EXPECT_EQ(layers({4, 2, 1 << 20}), 1u);
  const auto wrong = kv::layout::create({32, 2, 2048}, 16, std::size_t{2} << 20, 5);
  EXPECT_TRUE(fails_with(outcome(wrong), errc::invalid_argument, "kv::layout::create", 5, 32));
}

TEST_F(kv_arena, tensors_do_not_overlap) {
  const auto a = block_arena(32);
  const kv::layout &l = a->layout();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
  for (std::uint32_t layer = 0; layer < 4; ++layer) {
    for (std::uint32_t t = 0; t < 2; ++t) {
      for (std::size_t b = 0; b < 32; ++b) {
        const std::uint64_t at = (a->tensor(layer, t) + b * l.block_stride()).value();
        spans.emplace_back(at, at + l.block_bytes());
      }
    }
  }
  std::sort(spans.begin(), spans.end());
  for (std::size_t i = 1; i < spans.size(); ++i) ASSERT_GE(spans[i].first, spans[i - 1].second);
  EXPECT_GE(spans.front().first, a->range().begin.value());
  EXPECT_LE(spans.back().second, a->range().end().value());
}

// ---- driver calls ----------------------------------------------------------------------------------

TEST_F(kv_arena, maps_the_pages_that_are_used_and_no_more) {
  const auto a = block_arena(4096);
  EXPECT_EQ(maps(), 0u);
  EXPECT_EQ(device_bytes(), 0u);
  const std::uint64_t accesses = calls("cuMemSetAccess");
  step(*a, 10);
  EXPECT_EQ(maps(), 3u * 2);                          // three page groups of two ranges
  EXPECT_EQ(calls("cuMemSetAccess") - accesses, 2u);  // all pages of a range at once
  EXPECT_EQ(a->stats().free, 12u);
  EXPECT_EQ(a->stats().mapped_bytes, 6 * page());
}

TEST_F(kv_arena, a_steady_step_makes_no_driver_call) {
  const auto a = block_arena(256, 8);
  const auto s = sequence_arena(64, 8, 8 * page());
  const auto one = s->add().value();
  ASSERT_DONE(s->reserve(one, 16));
  step(*a, 32);
  step(*a, 16);
  step(*s);
  const std::uint64_t before = all_calls();
  std::array<block_id, 4> blocks{};
  for (int i = 0; i < 100; ++i) {
    ASSERT_DONE(a->prepare(16, stream_ref::legacy()));
    ASSERT_DONE(a->begin_step());
    ASSERT_DONE(a->allocate(blocks));
    ASSERT_DONE(a->release(blocks));
    ASSERT_DONE(s->reserve(one, 16));
    const auto other = s->add().value();
    ASSERT_DONE(s->remove(other));
    ASSERT_DONE(s->prepare(stream_ref::legacy()));
    ASSERT_DONE(s->begin_step(stream_ref::legacy()));
  }
  EXPECT_EQ(all_calls(), before);
}

// A load that ends gives its memory back, but for the spare, once the device has done its work.
TEST_F(kv_arena, memory_follows_the_blocks) {
  const auto a = block_arena(256, 4);
  const stream work = make_stream();
  ASSERT_DONE(a->prepare(100, work));
  ASSERT_DONE(a->begin_step());
  std::vector<block_id> blocks(100);
  ASSERT_DONE(a->allocate(blocks));
  const std::size_t full = device_bytes();
  EXPECT_EQ(full, 25 * 2 * page());
  testing::hold(work.get());
  ASSERT_DONE(a->release(blocks));
  ASSERT_DONE(a->prepare(0, work));
  ASSERT_DONE(a->begin_step());
  EXPECT_EQ(unmaps(), 0u) << "the device still works";
  testing::release(work.get());
  ASSERT_DONE(work.synchronize());
  const auto freed = a->trim();
  ASSERT_DONE(freed);
  EXPECT_EQ(device_bytes(), 0u);
  EXPECT_EQ(a->stats().mapped_bytes, 0u);
}

TEST_F(kv_arena, a_stream_that_captures_delays_what_is_given_back) {
  const auto a = block_arena(64);
  const stream work = make_stream();
  ASSERT_DONE(a->prepare(16, work));
  ASSERT_DONE(a->begin_step());
  {
    testing::captured_graph graph(dev(), work);
    ASSERT_DONE(a->prepare(0, work));
    ASSERT_DONE(a->begin_step());
    EXPECT_EQ(unmaps(), 0u);
    // What was given up is there again, without a call.
    const std::uint64_t before = maps();
    ASSERT_DONE(a->prepare(16, work));
    ASSERT_DONE(a->begin_step());
    EXPECT_EQ(maps(), before);
    EXPECT_EQ(a->stats().free, 16u);
  }
  ASSERT_DONE(a->prepare(0, work));
  ASSERT_DONE(a->begin_step());
  ASSERT_DONE(a->trim());
  EXPECT_EQ(device_bytes(), 0u);
}

// ---- blocks ----------------------------------------------------------------------------------------

TEST_F(kv_arena, blocks_of_a_sequence_lie_together) {
  const auto a = block_arena(16);
  step(*a, 16);
  std::array<block_id, 2> first{}, second{};
  std::array<block_id, 6> third{};
  ASSERT_DONE(a->allocate(first));
  ASSERT_DONE(a->allocate(second));
  EXPECT_NE(first[0] / 4, second[1] / 4);
  ASSERT_DONE(a->allocate(third));
  EXPECT_EQ(third[0] / 4, third[3] / 4);
  block_id next = 0;
  ASSERT_DONE(a->allocate({&next, 1}, first[1]));
  EXPECT_EQ(next / 4, first[1] / 4);
  // Without a free page group the fewest free blocks that are enough are taken: there are one, two and two.
  std::array<block_id, 2> fourth{};
  ASSERT_DONE(a->allocate(fourth));
  EXPECT_NE(fourth[0] / 4, first[0] / 4);
  EXPECT_EQ(fourth[0] / 4, fourth[1] / 4);
  std::array<block_id, 3> rest{};
  ASSERT_DONE(a->allocate(rest));
  EXPECT_EQ(a->stats().free, 0u);
}

// Two sequences that grow in turn, of which one ends.
TEST_F(kv_arena, a_sequence_that_ends_frees_its_page_groups) {
  const auto a = block_arena(64);
  std::array<std::vector<block_id>, 2> sequences;
  const auto grow = [&](std::size_t blocks) {
    std::array<kv::growth, 2> growths{};
    for (std::size_t i = 0; i < 2; ++i) {
      growths[i].blocks = blocks;
      if (!sequences[i].empty()) growths[i].after = sequences[i].back();
    }
    ASSERT_DONE(a->prepare(growths, stream_ref::legacy()));
    ASSERT_DONE(a->begin_step());
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<block_id> got(blocks);
      ASSERT_DONE(a->allocate(got, growths[i].after));
      sequences[i].insert(sequences[i].end(), got.begin(), got.end());
    }
  };
  for (int i = 0; i < 9; ++i) grow(1);
  const std::uint64_t before = maps();
  grow(3);  // twelve blocks each: what is beside the ninth is enough
  EXPECT_EQ(maps(), before);
  EXPECT_EQ(a->stats().mapped_bytes, 6 * 2 * page());
  ASSERT_DONE(a->release(sequences[0]));
  ASSERT_DONE(a->prepare(std::span<const kv::growth>(), stream_ref::legacy()));
  ASSERT_DONE(a->begin_step());
  EXPECT_EQ(a->stats().mapped_bytes, 3 * 2 * page());
  const kv::growth wrong = {.blocks = 1, .after = sequences[0][0]};
  EXPECT_TRUE(fails_with(a->prepare({&wrong, 1}, stream_ref::legacy()), errc::invalid_argument,
                         "kv::block_arena::prepare", sequences[0][0], 0));
  const kv::growth none = {.blocks = 1, .after = 64};
  EXPECT_TRUE(fails_with(a->prepare({&none, 1}, stream_ref::legacy()), errc::invalid_argument,
                         "kv::block_arena::prepare", 64, 64));
  ASSERT_DONE(a->release(sequences[1]));
}

TEST_F(kv_arena, compacting_frees_page_groups) {
  const auto a = block_arena(64);
  step(*a, 64);
  std::vector<block_id> all(64);
  ASSERT_DONE(a->allocate(all));
  // One block of each page group stays, with a byte of its own in each tensor.
  std::vector<block_id> stay, go;
  for (const block_id b : all) (b % 4 == 1 ? stay : go).push_back(b);
  const std::size_t stride = a->layout().block_stride();
  for (const block_id b : stay) {
    std::memset((a->tensor(3, 1) + b * stride).pointer(), static_cast<int>(b), 8);
  }
  ASSERT_DONE(a->release(go));
  const auto moves = a->compact(SIZE_MAX, stream_ref::legacy());
  ASSERT_DONE(moves);
  wait();
  EXPECT_EQ(moves->size(), 12u);  // sixteen blocks in four groups: twelve move
  for (const kv::block_move m : *moves) {
    std::replace(stay.begin(), stay.end(), m.from, m.to);
    const auto *const moved =
        static_cast<const unsigned char *>((a->tensor(3, 1) + m.to * stride).pointer());
    EXPECT_EQ(moved[7], m.from);
  }
  ASSERT_DONE(a->trim());
  EXPECT_EQ(a->stats().mapped_bytes, 4u * 2 * page());
  ASSERT_DONE(a->release(stay));
}

TEST_F(kv_arena, errors_of_blocks) {
  const auto a = block_arena(16);
  std::array<block_id, 8> blocks{};
  const std::size_t bytes = 4 * 4 * 2 * (page() / 64);
  EXPECT_TRUE(fails_with(a->allocate(blocks), errc::out_of_memory, "kv::block_arena::allocate",
                         8 * bytes, 0));
  step(*a, 4);
  EXPECT_TRUE(fails_with(a->allocate(blocks), errc::out_of_memory, "kv::block_arena::allocate",
                         8 * bytes, 4 * bytes));
  const block_id none = 16, free = 0;
  EXPECT_TRUE(
      fails_with(a->retain({&none, 1}), errc::invalid_argument, "kv::block_arena::retain", 16, 16));
  EXPECT_TRUE(
      fails_with(a->release({&free, 1}), errc::invalid_argument, "kv::block_arena::release"));
  EXPECT_TRUE(fails_with(a->drop({&free, 1}), errc::invalid_argument, "kv::block_arena::drop"));
  EXPECT_TRUE(fails_with(a->allocate({blocks.data(), 1}, free), errc::invalid_argument,
                         "kv::block_arena::allocate"));
  EXPECT_TRUE(fails_with(outcome(kv::block_arena::create(dev(), {.shape = {1, 1, 64}})),
                         errc::invalid_argument, "kv::block_arena::create"));
}

// ---- memory that is short --------------------------------------------------------------------------

TEST_F(kv_arena, what_is_free_beside_others_is_enough_where_memory_is_short) {
  const auto a = block_arena(64);
  step(*a, 8);
  std::array<block_id, 2> one{}, other{};
  ASSERT_DONE(a->allocate(one));
  ASSERT_DONE(a->allocate(other));
  leave_free(0);
  const std::array<kv::growth, 2> wanted = {{{2, one[1]}, {2, std::nullopt}}};
  ASSERT_DONE(a->prepare(wanted, stream_ref::legacy()));
  ASSERT_DONE(a->begin_step());
  std::array<block_id, 2> more{}, fresh{};
  ASSERT_DONE(a->allocate(more, one[1]));
  ASSERT_DONE(a->allocate(fresh));
  EXPECT_EQ(fresh[0] / 4, other[0] / 4);
  // And one block more than that is a shortage.
  const kv::growth last = {1, one[1]};
  ASSERT_DONE(a->prepare({&last, 1}, stream_ref::legacy()));
  const status begun = a->begin_step();
  ASSERT_FALSE(begun);
  EXPECT_TRUE(begun.error().is(errc::out_of_memory)) << begun.error().message();
}

TEST_F(kv_arena, short_memory_is_a_value) {
  const auto a = block_arena(256);
  leave_free(5);
  ASSERT_DONE(a->prepare(16, stream_ref::legacy()));
  const status begun = a->begin_step();
  ASSERT_FALSE(begun);
  EXPECT_TRUE(begun.error().is(errc::out_of_memory)) << begun.error().message();
  EXPECT_EQ(begun.error().value, 8 * page());
  EXPECT_EQ(begun.error().limit, 5 * page());
  EXPECT_EQ(a->stats().free, 8u) << "two page groups had memory";
  EXPECT_EQ(a->missing_for(8).value(), 0u);
  EXPECT_EQ(a->missing_for(16).value(), 4 * page() - 1 * page());
  leave_free(4);
  step(*a, 16);
  EXPECT_EQ(a->stats().free, 16u);
}

TEST_F(kv_arena, a_sequence_without_memory_has_what_there_was) {
  const auto a = sequence_arena(256, 4);
  const auto s = a->add().value();
  leave_free(3);
  ASSERT_DONE(a->reserve(s, 80));  // five pages
  ASSERT_DONE(a->prepare(stream_ref::legacy()));
  const status begun = a->begin_step(stream_ref::legacy());
  ASSERT_FALSE(begun);
  EXPECT_TRUE(begun.error().is(errc::out_of_memory)) << begun.error().message();
  EXPECT_EQ(a->capacity(s), 48u);
  leave_free(2);
  ASSERT_DONE(a->reserve(s, 80));
  step(*a);
  EXPECT_EQ(a->capacity(s), 80u);
}

TEST_F(kv_arena, a_block_takes_few_bytes_of_the_host) {
  constexpr std::size_t blocks = 1 << 20;
  // Two blocks in a page group, which is the smallest share of one that the rule gives a block of 16 tokens of a large
  // model; and 64.
  for (const kv::shape s : {kv::shape{8, 2, page() / 512}, kv::shape{8, 2, page() / 16384}}) {
    const std::uint64_t before = testing::host_allocated_bytes();
    const auto a = kv::block_arena::create(
        dev(), {.shape = s, .tokens_per_block = 16, .blocks = blocks, .layers_per_range = 8});
    ASSERT_DONE(outcome(a));
    EXPECT_LE(testing::host_allocated_bytes() - before, 64 * blocks);
    EXPECT_GE(testing::host_allocated_bytes() - before, 4 * blocks) << "the counts of references";
    std::vector<block_id> some(4096);
    step(**a, some.size());
    const std::uint64_t made = testing::host_allocated_bytes();
    ASSERT_DONE((*a)->allocate(some));
    ASSERT_DONE((*a)->release(some));
    EXPECT_EQ(testing::host_allocated_bytes(), made) << "blocks come and go without the host";
  }
}

// ---- sequences -------------------------------------------------------------------------------------

TEST_F(kv_arena, a_shared_prefix_is_stored_once) {
  const auto a = sequence_arena(2048, 101);
  const auto prefix = a->add().value();
  ASSERT_DONE(a->reserve(prefix, 2000));
  step(*a);
  std::vector<kv::sequence_id> all;
  for (int i = 0; i < 100; ++i) all.push_back(a->fork(prefix, 2000).value());
  const std::uint64_t copied = calls("cuMemcpyDtoDAsync_v2");
  step(*a);
  EXPECT_EQ(device_bytes(), 125 * page());
  EXPECT_EQ(calls("cuMemcpyDtoDAsync_v2"), copied) << "2,000 tokens are 125 pages: maps only";
  for (const auto &s : all) EXPECT_EQ(a->capacity(s), 2000u);
  EXPECT_EQ(a->stats().memory_bytes, 125 * page());
  EXPECT_EQ(a->stats().mapped_bytes, 101 * 125 * page());
}

TEST_F(kv_arena, a_fork_copies_less_than_a_page) {
  const auto a = sequence_arena(64, 1001);
  const auto parent = a->add().value();
  ASSERT_DONE(a->reserve(parent, 40));
  step(*a);
  for (std::uint32_t t = 0; t < 40; ++t) {
    std::memset((a->tensor(parent, 2, 1) + t * a->layout().block_stride()).pointer(),
                static_cast<int>(t + 1), 16);
  }
  std::vector<kv::sequence_id> beams;
  for (int i = 0; i < 1000; ++i) beams.push_back(a->fork(parent, 37).value());
  ASSERT_DONE(a->remove(parent));  // its last page is still copied
  step(*a);
  wait();
  EXPECT_EQ(a->stats().copied_groups, 1000u);
  EXPECT_EQ(a->stats().memory_bytes, (2 + 1000) * page());
  for (const auto &s : beams) {
    for (std::uint32_t t = 0; t < 37; ++t) {
      const auto *const token = static_cast<const unsigned char *>(
          (a->tensor(s, 2, 1) + t * a->layout().block_stride()).pointer());
      ASSERT_EQ(token[15], t + 1);
    }
    ASSERT_DONE(a->remove(s));
  }
}

TEST_F(kv_arena, a_sequence_grows_in_place_and_shrinks) {
  const auto a = sequence_arena(256, 2);
  const auto s = a->add().value();
  ASSERT_DONE(a->reserve(s, 16));
  step(*a);
  const device_address at = a->tensor(s, 0, 0);
  std::memset(at.pointer(), 42, 64);
  ASSERT_DONE(a->reserve(s, 256));
  step(*a);
  EXPECT_EQ(a->tensor(s, 0, 0), at);
  EXPECT_EQ(static_cast<const char *>(at.pointer())[63], 42);
  EXPECT_EQ(a->stats().memory_bytes, 16 * page());
  ASSERT_DONE(a->release_beyond(s, 17));
  step(*a);
  EXPECT_EQ(a->capacity(s), 32u);
  ASSERT_DONE(a->trim());
  EXPECT_EQ(device_bytes(), 2 * page());
}

// The addresses of a removed fork are used again before the device has done what it was given then.
TEST_F(kv_arena, a_fork_waits_for_the_addresses_of_another) {
  const auto a = sequence_arena(64, 2);
  const stream work = make_stream();
  const auto begin = [&] { return a->begin_step(work); };
  const auto parent = a->add().value();
  ASSERT_DONE(a->reserve(parent, 32));
  ASSERT_DONE(a->prepare(work));
  ASSERT_DONE(begin());
  testing::hold(work.get());
  for (int i = 0; i < 3; ++i) {  // of four slots, the parent has one
    const auto fork = a->fork(parent, 32).value();
    ASSERT_DONE(a->prepare(work));
    ASSERT_DONE(begin());
    ASSERT_DONE(a->remove(fork));
    ASSERT_DONE(a->prepare(work));
    ASSERT_DONE(begin());
  }
  const auto fork = a->fork(parent, 32).value();
  ASSERT_DONE(a->prepare(work));
  testing::release(work.get());
  ASSERT_DONE(begin());
  EXPECT_EQ(a->capacity(fork), 32u);
}

TEST_F(kv_arena, a_stream_that_is_another_one_in_the_worker_is_refused) {
  const auto a = block_arena(16);
  EXPECT_TRUE(fails_with(a->prepare(4, stream_ref::per_thread()), errc::invalid_argument,
                         "kv::block_arena::prepare"));
  const auto b = sequence_arena(16, 1);
  EXPECT_TRUE(fails_with(b->prepare(stream_ref::per_thread()), errc::invalid_argument,
                         "kv::sequence_arena::prepare"));
}

// The caller has ordered another stream after that of prepare().
TEST_F(kv_arena, trimming_waits_for_the_whole_device) {
  const auto a = block_arena(16);
  const stream work = make_stream();
  step(*a, 4);
  testing::hold(work.get());
  const fence queued = after(work);
  std::thread trims([&] { ASSERT_DONE(a->trim()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(unmaps(), 0u);
  testing::release(work.get());
  trims.join();
  EXPECT_GT(unmaps(), 0u);
}

// What comes between prepare() and begin_step() is for the step after.
TEST_F(kv_arena, late_wishes_wait_for_the_next_step) {
  const auto a = sequence_arena(64, 4);
  const auto parent = a->add().value();
  ASSERT_DONE(a->reserve(parent, 40));
  step(*a);
  std::memset((a->tensor(parent, 1, 1) + 36 * a->layout().block_stride()).pointer(), 42, 16);
  ASSERT_DONE(a->prepare(stream_ref::legacy()));
  const auto fork = a->fork(parent, 37).value();
  ASSERT_DONE(a->reserve(parent, 60));
  ASSERT_DONE(a->begin_step(stream_ref::legacy()));
  EXPECT_EQ(a->capacity(fork), 0u);
  step(*a);
  wait();
  EXPECT_EQ(a->capacity(fork), 48u);
  EXPECT_EQ(a->capacity(parent), 64u);
  EXPECT_EQ(static_cast<const char *>(
                (a->tensor(fork, 1, 1) + 36 * a->layout().block_stride()).pointer())[15],
            42);
}

TEST_F(kv_arena, a_fork_without_its_memory_says_so) {
  const auto a = sequence_arena(64, 4);
  const auto parent = a->add().value();
  ASSERT_DONE(a->reserve(parent, 40));
  step(*a);
  leave_free(0);
  const auto fork = a->fork(parent, 37).value();
  ASSERT_DONE(a->prepare(stream_ref::legacy()));
  EXPECT_FALSE(a->begin_step(stream_ref::legacy()));
  EXPECT_EQ(a->capacity(fork), 32u) << "what is shared needs no memory";
  leave_free(4);
  EXPECT_TRUE(fails_with(a->reserve(fork, 37), errc::busy, "kv::sequence_arena::reserve"));
  step(*a);
  EXPECT_EQ(a->capacity(fork), 32u);
  ASSERT_DONE(a->remove(fork));
  const auto again = a->fork(parent, 37).value();
  step(*a);
  EXPECT_EQ(a->capacity(again), 48u);
}

// Slots come back, whatever became of them.
TEST_F(kv_arena, addresses_do_not_run_out) {
  const auto a = sequence_arena(64, 2, 16 * page());
  for (int i = 0; i < 12; ++i) {
    const auto parent = a->add();
    ASSERT_DONE(parent);
    ASSERT_DONE(a->reserve(*parent, 40));
    step(*a);
    const auto fork = a->fork(*parent, i % 2 == 0 ? 37 : 10);
    ASSERT_DONE(fork);
    if (i % 3 == 0) step(*a);
    ASSERT_DONE(a->remove(*parent));
    ASSERT_DONE(a->remove(*fork));
    step(*a);
    step(*a);
  }
  ASSERT_DONE(a->trim());
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(kv_arena, spare_memory_goes_to_whom_it_lacks) {
  const auto a = sequence_arena(64, 4, 8 * page());
  std::vector<kv::sequence_id> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(a->add().value());
    ASSERT_DONE(a->reserve(all.back(), 16));
  }
  step(*a);
  for (const auto s : all) ASSERT_DONE(a->remove(s));
  leave_free(0);
  EXPECT_EQ(a->missing_for(64).value(), 3 * page());
  const auto s = a->add().value();
  for (int i = 0; i < 3 && a->capacity(s) < 64; ++i) {
    ASSERT_DONE(a->reserve(s, 64));
    ASSERT_DONE(a->prepare(stream_ref::legacy()));
    (void)a->begin_step(stream_ref::legacy());
  }
  EXPECT_EQ(a->capacity(s), 64u);
}

// A short sequence does not keep what a long one had.
TEST_F(kv_arena, a_sequence_gets_memory_of_a_removed_one_that_it_needs) {
  const auto a = sequence_arena(64, 2, 8 * page());
  const auto first = a->add().value();
  ASSERT_DONE(a->reserve(first, 64));
  step(*a);
  ASSERT_DONE(a->remove(first));
  step(*a);
  const std::uint64_t before = maps();
  const auto second = a->add().value();
  EXPECT_EQ(a->capacity(second), 0u) << "it has reserved nothing";
  ASSERT_DONE(a->reserve(second, 20));
  EXPECT_EQ(a->capacity(second), 32u) << "without a step";
  step(*a);
  EXPECT_EQ(maps(), before);
  EXPECT_EQ(a->stats().memory_bytes, 2 * page());
}

TEST_F(kv_arena, a_shared_page_is_not_cut) {
  const auto a = sequence_arena(64, 2);
  const auto s = a->add().value();
  ASSERT_DONE(a->reserve(s, 40));
  step(*a);
  const auto fork = a->fork(s, 40).value();
  EXPECT_TRUE(fails_with(a->release_beyond(s, 32), errc::busy,
                         "kv::sequence_arena::release_beyond"));  // its end is to be copied
  step(*a);
  EXPECT_TRUE(
      fails_with(a->release_beyond(s, 20), errc::busy, "kv::sequence_arena::release_beyond"));
  ASSERT_DONE(a->release_beyond(s, 16));
  EXPECT_TRUE(
      fails_with(a->release_beyond(s, 9), errc::busy, "kv::sequence_arena::release_beyond"));
  ASSERT_DONE(a->remove(fork));
  ASSERT_DONE(a->release_beyond(s, 9));
  ASSERT_DONE(a->release_beyond(s, 0));
}

TEST_F(kv_arena, errors_of_sequences) {
  const auto a = sequence_arena(64, 2);
  const auto s = a->add().value();
  EXPECT_TRUE(
      fails_with(a->reserve(s, 65), errc::invalid_argument, "kv::sequence_arena::reserve", 65, 64));
  EXPECT_TRUE(
      fails_with(outcome(a->fork(s, 1)), errc::invalid_argument, "kv::sequence_arena::fork", 1, 0));
  ASSERT_DONE(a->add());
  EXPECT_TRUE(fails_with(outcome(a->add()), errc::address_space_exhausted,
                         "kv::sequence_arena::add", 3, 2));
  ASSERT_DONE(a->remove(s));
  EXPECT_TRUE(fails_with(a->remove(s), errc::invalid_argument, "kv::sequence_arena::remove"));
  EXPECT_EQ(a->capacity(s), 0u);
}

// ---- suspension ------------------------------------------------------------------------------------

TEST_F(kv_arena, nothing_begins_while_memory_is_suspended) {
  const auto a = block_arena(16);
  step(*a, 4);
  const virtual_range first{a->tensor(0, 0), page()};
  remap_plan away({});
  away.suspend(first, 7);
  ASSERT_DONE(dev().space().apply(std::move(away)));
  EXPECT_TRUE(fails_with(a->begin_step(), errc::busy, "kv::block_arena::begin_step"));
  EXPECT_TRUE(fails_with(outcome(a->trim()), errc::busy, "kv::block_arena::trim"));
  std::vector<page_ptr> fresh;
  ASSERT_DONE(dev().pool()->acquire(1, fresh));
  remap_plan back({});
  back.resume(first.begin, std::move(fresh.front()), 7);
  ASSERT_DONE(dev().space().apply(std::move(back)));
  step(*a, 8);
  EXPECT_EQ(a->stats().free, 8u);
}

// What the memory of a block arena held is forgotten: each call says so or changes ids only, and none maps or unmaps.
TEST_F(kv_arena, forgotten_blocks_stay_without_memory) {
  const auto a = block_arena(32, 4);
  step(*a, 8);
  std::array<block_id, 2> used{}, cached{};
  ASSERT_DONE(a->allocate(used));
  ASSERT_DONE(a->allocate(cached));
  ASSERT_DONE(a->release(cached, kv::block_arena::contents::keep));
  forget({a->tensor(0, 0), page()});
  const std::uint64_t mapped = maps(), unmapped = unmaps();
  const std::array<block_id, 1> other{20};
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(says_forgotten(a->prepare(16, stream_ref::legacy()), "kv::block_arena::prepare"));
    EXPECT_TRUE(says_forgotten(a->begin_step(), "kv::block_arena::begin_step"));
    EXPECT_TRUE(says_forgotten(a->claim(other, stream_ref::legacy()), "kv::block_arena::claim"));
    EXPECT_TRUE(says_forgotten(a->adopt(other, a->tensor(0, 0)), "kv::block_arena::adopt"));
    EXPECT_TRUE(
        says_forgotten(outcome(a->compact(9, stream_ref::legacy())), "kv::block_arena::compact"));
    EXPECT_TRUE(says_forgotten(outcome(a->trim()), "kv::block_arena::trim"));
  }
  std::vector<block_id> evicted;
  ASSERT_DONE(a->evict(9, evicted));
  EXPECT_EQ(evicted.size(), 2u);
  ASSERT_DONE(a->retain(used));
  ASSERT_DONE(a->release(used));
  ASSERT_DONE(a->release(used));
  EXPECT_EQ(a->stats().used + a->stats().cached, 0u);
  EXPECT_EQ(maps(), mapped);
  EXPECT_EQ(unmaps(), unmapped);
}

// A fork waits for its memory, and a removed sequence's is to be taken, as it is forgotten.
TEST_F(kv_arena, forgotten_sequences_stay_without_memory) {
  const auto a = sequence_arena(64, 8);
  const auto one = a->add().value(), two = a->add().value(), three = a->add().value();
  for (const auto s : {one, two, three}) ASSERT_DONE(a->reserve(s, 40));
  step(*a);
  const auto copy = a->fork(one, 24).value();
  ASSERT_DONE(a->remove(two));
  forget({a->tensor(one, 0, 0), page()});
  const std::uint64_t mapped = maps(), unmapped = unmaps();
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(says_forgotten(a->prepare(stream_ref::legacy()), "kv::sequence_arena::prepare"));
    EXPECT_TRUE(
        says_forgotten(a->begin_step(stream_ref::legacy()), "kv::sequence_arena::begin_step"));
    EXPECT_TRUE(says_forgotten(outcome(a->trim()), "kv::sequence_arena::trim"));
  }
  ASSERT_DONE(a->reserve(three, 64));
  EXPECT_EQ(a->capacity(three), 48u);
  EXPECT_EQ(a->capacity(copy), 0u);
  ASSERT_DONE(a->add());
  for (const auto s : {copy, one, three}) ASSERT_DONE(a->remove(s));
  EXPECT_EQ(maps(), mapped);
  EXPECT_EQ(unmaps(), unmapped);
}

}  // namespace
}  // namespace stillmap
