#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {
namespace {

class c_api_errors : public device_test {};

TEST_F(c_api_errors, name_the_function_the_value_its_unit_and_the_limit) {
  c_world w(false);
  uint64_t free_bytes = 0, total_bytes = 0;
  ASSERT_TRUE(c_done(stillmap_device_get_memory(w.device, &free_bytes, &total_bytes)));
  const std::size_t too_much = 2 * total_bytes;
  EXPECT_EQ(stillmap_buffer_resize(w.buffer, too_much), STILLMAP_OUT_OF_MEMORY);
  const stillmap_error e = last_c_error();
  EXPECT_EQ(e.status, STILLMAP_OUT_OF_MEMORY);
  EXPECT_STREQ(e.function, "stillmap_buffer_resize");
  EXPECT_EQ(e.value, too_much) << e.message;
  EXPECT_GT(e.limit, 0U);
  EXPECT_LE(e.limit, total_bytes);
  EXPECT_EQ(e.unit, STILLMAP_UNIT_BYTES);
  EXPECT_NE(std::string(e.advice).find("free device memory"), std::string::npos);
  EXPECT_STREQ(e.message, stillmap_error_message());
  // A success keeps it, clear() does not.
  EXPECT_TRUE(c_done(stillmap_buffer_resize(w.buffer, w.page)));
  EXPECT_EQ(last_c_error().status, STILLMAP_OUT_OF_MEMORY);
  stillmap_error_clear();
  EXPECT_EQ(last_c_error().status, STILLMAP_OK);
  EXPECT_STREQ(stillmap_error_message(), "");
}

TEST_F(c_api_errors, of_the_driver_have_its_code) {
  STILLMAP_NEEDS_HOSTCUDA();
  c_world w(false);
  hostcuda_control::fail("cuMemGetInfo", 1, CUDA_ERROR_UNKNOWN);
  uint64_t bytes = 0;
  EXPECT_EQ(stillmap_device_get_memory(w.device, &bytes, &bytes), STILLMAP_FAILED);
  const stillmap_error e = last_c_error();
  EXPECT_EQ(e.driver_code, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(e.system_code, 0);
  EXPECT_STREQ(e.operation, "cuMemGetInfo");
  EXPECT_STREQ(e.function, "stillmap_device_get_memory");
  EXPECT_EQ(std::string(e.message).rfind("stillmap_device_get_memory: cuMemGetInfo: ", 0), 0U)
      << e.message;
}

TEST_F(c_api_errors, of_the_system_have_its_errno_and_the_path) {
  c_world w(false);
  stillmap_restored *restored = nullptr;
  EXPECT_EQ(stillmap_snapshot_restore(w.device, "/nowhere/image.smi", nullptr, &restored),
            STILLMAP_SYSTEM_ERROR);
  const stillmap_error e = last_c_error();
  EXPECT_EQ(e.system_code, ENOENT);
  EXPECT_STREQ(e.subject, "/nowhere/image.smi");
  EXPECT_EQ(restored, nullptr);
}

TEST_F(c_api_errors, last_error_refuses_a_bad_struct_and_keeps_the_error) {
  EXPECT_EQ(stillmap_buffer_resize(nullptr, 1), STILLMAP_INVALID_ARGUMENT);
  const std::string before = stillmap_error_message();
  EXPECT_EQ(stillmap_error_last(nullptr), STILLMAP_INVALID_ARGUMENT);
  stillmap_error zero{};
  EXPECT_EQ(stillmap_error_last(&zero), STILLMAP_INVALID_ARGUMENT);
  EXPECT_EQ(stillmap_error_message(), before);
}

TEST_F(c_api_errors, status_names_cover_all_numbers) {
  EXPECT_STREQ(stillmap_status_name(STILLMAP_OK), "success");
  EXPECT_STREQ(stillmap_status_name(STILLMAP_FAILED), "driver error");
  for (const int number : {-1, STILLMAP_FAILED + 1, INT32_MAX, INT32_MIN}) {
    EXPECT_STREQ(stillmap_status_name(number), "unknown");
  }
}

// Eight threads on one allocator, each with failures of its own.
TEST_F(c_api_errors, are_each_threads_own) {
  c_world w(false);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::size_t id = 1; id <= 8; ++id) {
    threads.emplace_back([&, id] {
      if (std::strcmp(stillmap_error_message(), "") != 0) ++wrong;
      const std::string expected = "stillmap_pool_retain";
      for (int i = 0; i < 200; ++i) {
        void *block = nullptr;
        if (stillmap_allocator_allocate(w.allocator, id * 1000, nullptr, nullptr, &block) !=
            STILLMAP_OK) {
          ++wrong;
        }
        if (stillmap_pool_retain(w.allocator, 1000 + id) != STILLMAP_INVALID_ARGUMENT) ++wrong;
        if (stillmap_allocator_free(w.allocator, block) != STILLMAP_OK) ++wrong;
        std::this_thread::yield();
        auto e = sized<stillmap_error>();
        stillmap_error_last(&e);
        if (e.value != 1000 + id || expected != e.function) ++wrong;
      }
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  auto stats = sized<stillmap_allocator_stats>();
  ASSERT_TRUE(c_done(stillmap_allocator_get_stats(w.allocator, &stats)));
  EXPECT_EQ(stats.allocations, 1600U);
  EXPECT_EQ(stats.live, 0U);
}

// Threads make and end handles while others use theirs.
TEST_F(c_api_errors, handles_may_come_and_go_in_many_threads) {
  c_world w(false);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int id = 0; id < 8; ++id) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        stillmap_device *other = nullptr;
        if (stillmap_device_open(0, &other) != STILLMAP_OK) ++wrong;
        auto info = sized<stillmap_device_info>();
        if (stillmap_device_get_info(other, &info) != STILLMAP_OK) ++wrong;
        if (stillmap_device_close(other) != STILLMAP_OK) ++wrong;
        if (stillmap_device_close(other) != STILLMAP_INVALID_ARGUMENT) ++wrong;
      }
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(c_api_errors, background_errors_reach_the_callback) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  struct seen {
    int count = 0;
    std::string operation;
  } seen;
  const auto callback = [](const stillmap_error *e, void *user) {
    auto *const s = static_cast<struct seen *>(user);
    if (s->count++ == 0) s->operation = e->operation;
  };
  {
    c_world w(false);
    const uint64_t before = stillmap_background_error_count();
    ASSERT_TRUE(c_done(stillmap_background_error_set_callback(callback, &seen)));
    const char *const call = w.vmm ? "cuMemUnmap" : "cuMemFree";
    hostcuda_control::fail(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_TRUE(c_done(stillmap_buffer_destroy(w.buffer)));
    w.buffer = nullptr;
    EXPECT_GE(seen.count, 1);  // what it was mapped to cannot be given back either
    EXPECT_EQ(seen.operation, call);
    EXPECT_EQ(stillmap_background_error_count(), before + static_cast<uint64_t>(seen.count));
    ASSERT_TRUE(c_done(stillmap_background_error_set_callback(nullptr, nullptr)));
  }
}

}  // namespace
}  // namespace stillmap::testing
