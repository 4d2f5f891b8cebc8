// CU_STREAM_PER_THREAD: one handle, another stream in each thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::hold;
using testing::release;

class thread_streams : public testing::buffer_test {
 protected:
  static stream_ref mine() { return CU_STREAM_PER_THREAD; }
  void make(caching_allocator_options options = {}) {
    auto made = caching_allocator::create(dev(), std::move(options));
    ASSERT_TRUE(made) << made.error().message();
    heap_ = std::move(*made);
  }
  void TearDown() override {
    heap_.reset();
    buffer_test::TearDown();
  }
  caching_allocator &heap() { return *heap_; }
  void *allocate(std::size_t bytes) {
    const auto got = heap().allocate(bytes, mine());
    EXPECT_TRUE(got) << got.error().message();
    return got.value_or(nullptr);
  }
  // By work on the calling thread's stream.
  void fill(void *block, unsigned char value, std::size_t bytes) {
    const context_guard guard(driver(), dev().context());
    const device_address at(reinterpret_cast<std::uintptr_t>(block));
    EXPECT_TRUE(driver().set_bytes_async(at, value, bytes, mine().get()));
  }
  void synchronize() {
    const context_guard guard(driver(), dev().context());
    EXPECT_TRUE(driver().synchronize_stream(mine().get()));
  }
  std::size_t differing(void *block, unsigned char value, std::size_t bytes) {
    const auto there =
        testing::get(dev(), device_address(reinterpret_cast<std::uintptr_t>(block)), bytes);
    return static_cast<std::size_t>(
        std::count_if(there.begin(), there.end(), [&](unsigned char c) { return c != value; }));
  }
  static void in_another_thread(const std::function<void()> &act) { std::thread(act).join(); }

  std::unique_ptr<caching_allocator> heap_;
};

// Regression: all threads shared one arena. One thread's block was given to another while work of
// the first still wrote to it: 67,108,864 of 67,108,864 bytes were wrong.
TEST_F(thread_streams, threads_do_not_get_each_others_blocks) {
  make();
  const stream gate = make_stream();
  for (const std::size_t bytes : {std::size_t{600}, 64_KiB, 8_MiB}) {
    void *const block = allocate(bytes);
    hold(gate.get());
    ASSERT_TRUE(after(gate).make_wait(dev(), mine()));
    fill(block, 1, bytes);
    ASSERT_TRUE(heap().free(block));
    void *other = nullptr;
    in_another_thread([&] {
      other = allocate(bytes);
      EXPECT_NE(other, block);
      fill(other, 2, bytes);
    });
    release(gate.get());
    synchronize();
    EXPECT_EQ(differing(other, 2, bytes), 0u);
    EXPECT_EQ(allocate(bytes), block) << "on its own stream it is reusable at once";
    ASSERT_TRUE(heap().free(block));
    ASSERT_TRUE(heap().free(other)) << "from another thread than its own";
  }
}

TEST_F(thread_streams, memory_of_one_thread_serves_another_behind_its_work) {
  make({.limit = 48 * page()});
  const std::size_t bytes = 40 * page();
  void *const block = allocate(bytes);
  fill(block, 1, bytes);
  ASSERT_TRUE(heap().free(block));
  void *other = nullptr;
  in_another_thread([&] {
    other = allocate(bytes);
    fill(other, 2, bytes);
    synchronize();
  });
  synchronize();
  EXPECT_EQ(differing(other, 2, bytes), 0u);
  ASSERT_TRUE(heap().free(other));
}

TEST_F(thread_streams, a_use_by_another_thread_delays_reuse) {
  make();
  void *const block = allocate(8_MiB);
  ASSERT_TRUE(heap().record_use(block, mine())) << "its own stream: no other use";
  in_another_thread([&] { ASSERT_TRUE(heap().record_use(block, mine())); });
  ASSERT_TRUE(heap().free(block));
  EXPECT_EQ(heap().stats().total.pending_free, 8_MiB);
  ASSERT_TRUE(heap().empty_cache());
  EXPECT_EQ(heap().stats().total.pending_free, 0u);
}

TEST_F(thread_streams, threads_that_come_and_go_leave_nothing) {
  for (const bool told : {true, false}) {
    make();
    for (int i = 0; i < 300; ++i) {
      in_another_thread([&] {
        void *const block = allocate(3_MiB);
        fill(block, static_cast<unsigned char>(i), 3_MiB);
        ASSERT_TRUE(heap().free(block));
        if (told) {
          ASSERT_TRUE(heap().forget_stream(mine()));
        }
      });
    }
    EXPECT_LE(heap().stats().arenas.size(), told ? 1u : 80u);
    ASSERT_TRUE(heap().empty_cache());
    EXPECT_EQ(heap().stats().total.committed, 0u);
    heap_.reset();
  }
}

TEST_F(thread_streams, reports_name_the_handle) {
  make();
  void *const block = allocate(8_MiB);
  EXPECT_EQ(heap().stats().arenas.at(0).stream, mine());
  EXPECT_EQ(heap().map()->arenas.at(0).stream, mine());
  ASSERT_TRUE(heap().free(block, mine()));
  EXPECT_EQ(heap().stats().total.pending_free, 0u);
}

}  // namespace
}  // namespace stillmap
