// A program that is built with `nvcc --default-stream per-thread`, which defines this macro.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1

#include <gtest/gtest.h>

#include <thread>

#include "stillmap/allocators/caching_allocator.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap {
namespace {

using namespace literals;

class default_stream : public testing::buffer_test {};

TEST_F(default_stream, the_null_handle_is_the_threads_own_stream) {
  const stream_handle null = nullptr;
  EXPECT_EQ(stream_ref(), stream_ref::per_thread());
  EXPECT_EQ(stream_ref(null), stream_ref::per_thread());
  EXPECT_EQ(stream_ref::per_thread().get(), CU_STREAM_PER_THREAD);
  EXPECT_EQ(stream_ref::legacy().get(), null);
  EXPECT_NE(stream_ref::legacy(), stream_ref());
  const stream s = make_stream();
  EXPECT_EQ(stream_ref(s).get(), s.get());
}

// Regression: stream 0 was the legacy stream, and so one arena of all threads.
TEST_F(default_stream, threads_do_not_get_each_others_blocks) {
  const auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  const stream gate = make_stream();
  void *const block = *heap.allocate(8_MiB);
  testing::hold(gate.get());
  ASSERT_TRUE(after(gate).make_wait(dev(), {}));
  const device_address at(reinterpret_cast<std::uintptr_t>(block));
  const context_guard guard(driver(), dev().context());
  ASSERT_TRUE(driver().set_bytes_async(at, 1, 8_MiB, stream_ref().get()));
  ASSERT_TRUE(heap.free(block));
  std::thread([&] {
    void *const other = *heap.allocate(8_MiB);
    EXPECT_NE(other, block);
    EXPECT_TRUE(heap.free(other));
  }).join();
  testing::release(gate.get());
  EXPECT_TRUE(driver().synchronize_stream(stream_ref().get()));
  EXPECT_EQ(*heap.allocate(8_MiB), block) << "on its own stream it is reusable at once";
}

}  // namespace
}  // namespace stillmap
