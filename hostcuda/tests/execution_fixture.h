// Fixture for tests of streams, events, graphs and the oracle: a new machine with a context, two
// streams, and a few megabytes of device memory.
#pragma once

#include <gtest/gtest.h>
#include <hostcuda/hostcuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace hostcuda_tests {

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr std::size_t kPage = 2 * MiB;

// Records the order in which operations ran.
struct journal {
  std::vector<int> order;  // written by operations that do not run concurrently
};

struct note {
  journal *into;
  int value;
};

inline void CUDA_CB write_note(void *user) {
  auto *n = static_cast<note *>(user);
  n->into->order.push_back(n->value);
}

class machine_test : public ::testing::Test {
 protected:
  void SetUp() override { start("profile=h200,schedule=threads"); }

  void start(const std::string &text) {
    ASSERT_EQ(hostcuda_reset(text.c_str()), CUDA_SUCCESS) << text;
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&ctx_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(ctx_), CUDA_SUCCESS);
  }

  void TearDown() override {
    ASSERT_EQ(hostcuda_reset("profile=h200,schedule=threads"), CUDA_SUCCESS);
  }

  static CUstream make_stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, flags), CUDA_SUCCESS);
    return s;
  }

  static CUevent make_event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent e = nullptr;
    EXPECT_EQ(cuEventCreate(&e, flags), CUDA_SUCCESS);
    return e;
  }

  static std::size_t free_bytes() {
    std::size_t free_now = 0;
    std::size_t total = 0;
    EXPECT_EQ(cuMemGetInfo(&free_now, &total), CUDA_SUCCESS);
    return free_now;
  }

  // Creates and maps device memory, readable and writable, in multiples of 2 MiB.
  static CUdeviceptr reserve(std::size_t bytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAddressReserve(&at, bytes, 0, 0, 0), CUDA_SUCCESS);
    return at;
  }

  static CUmemGenericAllocationHandle create(std::size_t bytes) {
    CUmemAllocationProp prop{};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = 0;
    CUmemGenericAllocationHandle h = 0;
    EXPECT_EQ(cuMemCreate(&h, bytes, &prop, 0), CUDA_SUCCESS);
    return h;
  }

  static void map(CUdeviceptr at, CUmemGenericAllocationHandle h, std::size_t bytes) {
    ASSERT_EQ(cuMemMap(at, bytes, 0, h, 0), CUDA_SUCCESS);
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = 0;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    ASSERT_EQ(cuMemSetAccess(at, bytes, &access, 1), CUDA_SUCCESS);
  }

  static std::uint64_t violations() {
    hostcuda_counters c{};
    EXPECT_EQ(hostcuda_get_counters(&c), CUDA_SUCCESS);
    return c.violations;
  }

  static hostcuda_violation violation(std::uint64_t index) {
    hostcuda_violation v{};
    EXPECT_EQ(hostcuda_get_violation(index, &v), CUDA_SUCCESS);
    return v;
  }

  CUcontext ctx_ = nullptr;
};

}  // namespace hostcuda_tests
