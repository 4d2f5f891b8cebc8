// Physical memory: cuMemCreate, its limits, and its effect on the device's memory counters.
#include <unistd.h>

#include <algorithm>

#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class create : public vmm_test {
 protected:
  // Judges a creation that must be refused, and gives it back should it succeed.
  CUresult attempt(std::size_t bytes, const CUmemAllocationProp &p) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult got = cu().MemCreate(&handle, bytes, &p, 0);
    if (got == CUDA_SUCCESS) {
      EXPECT_EQ(cu().MemRelease(handle), CUDA_SUCCESS);
    }
    return got;
  }

  std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    MUST(cu().MemGetInfo(&free, &total));
    return free;
  }
};

TEST_F(create, a17_size_off_the_granularity_is_refused) {
  expect_code(17, "granularity + 1", attempt(page + 1, properties()), {CUDA_ERROR_INVALID_VALUE});
  expect_code(17, "granularity / 2", attempt(page / 2, properties()), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(create, a18_zero_bytes_are_refused) {
  expect_code(18, "0 bytes", attempt(0, properties()), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(create, a19_current_numa_node_is_no_place_for_memory) {
  CUmemAllocationProp p = properties();
  p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  expect_code(19, "HOST_NUMA_CURRENT", attempt(page, p), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(create, a20_host_memory_with_handle_types_is_refused) {
  CUmemAllocationProp p = properties(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  p.location.type = CU_MEM_LOCATION_TYPE_HOST;
  expect_code(20, "HOST with a file descriptor", attempt(page, p), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(create, a21_fabric_handles_need_imex) {
  if (version < 12040) SKIP_BECAUSE("the driver is older than fabric handles (12.4)");
  if (::access("/dev/nvidia-caps-imex-channels/channel0", F_OK) == 0)
    SKIP_BECAUSE("this machine has an IMEX channel");
  expect_code(21, "FABRIC without IMEX", attempt(page, properties(0, CU_MEM_HANDLE_TYPE_FABRIC)),
              {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED});
}

TEST_F(create, a22_beyond_capacity_is_out_of_memory_and_recoverable) {
  std::size_t total = 0;
  MUST(cu().DeviceTotalMem(&total, 0));
  const std::size_t too_much = (total / page + 1) * page;
  expect_code(22, "the device and a page more", attempt(too_much, properties()),
              {CUDA_ERROR_OUT_OF_MEMORY});
  // On hostcuda the rest of the device is taken away, so that the edge costs no real memory.
  std::size_t free = free_bytes();
  if (cu().is_hostcuda() && free > 64 * mib) {
    MUST(cu().hostcuda_occupy(0, free - 64 * mib));
    free = free_bytes();
  }
  // From more than is free downwards until it fits: every step before is a clean refusal.
  CUresult got = CUDA_ERROR_OUT_OF_MEMORY;
  std::size_t bytes = (free / page + 1) * page;
  const std::size_t step = std::max(page, free / 64 / page * page);
  int refused = 0;
  while (bytes > step && (got = attempt(bytes, properties())) == CUDA_ERROR_OUT_OF_MEMORY) {
    bytes -= step;
    ++refused;
  }
  EXPECT_EQ(got, CUDA_SUCCESS) << "at " << bytes << " bytes";
  EXPECT_GE(refused, 1) << "more than is free was handed out";
  record(22, std::to_string(bytes) + " of " + std::to_string(free) + " free bytes fitted after " +
                 std::to_string(refused) + " refusals");
  if (cu().is_hostcuda()) MUST(cu().hostcuda_occupy(0, 0));
}

TEST_F(create, a23_free_memory_falls_by_exactly_the_size) {
  // Three tries: on a shared device somebody else may move the figure in between.
  const std::size_t bytes = 16 * page;
  std::size_t used = 0;
  for (int i = 0; i < 3 && used != bytes; ++i) {
    const std::size_t before = free_bytes();
    physical memory(bytes);
    used = before - free_bytes();
  }
  record(23, std::to_string(bytes) + " created, " + std::to_string(used) + " used");
  EXPECT_EQ(used, bytes);
}

TEST_F(create, a24_free_memory_returns_after_unmap_and_release) {
  const std::size_t bytes = 16 * page;
  std::size_t while_mapped = 0, afterwards = 1;
  for (int i = 0; i < 3 && (while_mapped != bytes || afterwards != 0); ++i) {
    reserved range(bytes);
    const std::size_t before = free_bytes();
    physical memory(bytes);
    mapped all(range.at, memory);
    MUST(cu().MemRelease(memory.handle));
    memory.forget();
    while_mapped = before - free_bytes();  // the mapping keeps it alive
    MUST(cu().MemUnmap(range.at, bytes));
    all.forget();
    afterwards = before - free_bytes();
  }
  record(24, std::to_string(while_mapped) + " in use while released but mapped, " +
                 std::to_string(afterwards) + " after unmap");
  EXPECT_EQ(while_mapped, bytes);
  EXPECT_EQ(afterwards, 0u);
}

TEST_F(create, a48_properties_echo_the_request) {
  const auto expect_echo = [&](unsigned handle_types) {
    physical memory(page, handle_types);
    CUmemAllocationProp p{};
    MUST(cu().MemGetAllocationPropertiesFromHandle(&p, memory.handle));
    EXPECT_EQ(p.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    EXPECT_EQ(p.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    EXPECT_EQ(p.location.id, 0);
    EXPECT_EQ(static_cast<unsigned>(p.requestedHandleTypes), handle_types);
    EXPECT_EQ(p.allocFlags.gpuDirectRDMACapable, 0);
    record(48, "handle types " + std::to_string(handle_types) + " echoed as " +
                   std::to_string(static_cast<unsigned>(p.requestedHandleTypes)));
  };
  expect_echo(CU_MEM_HANDLE_TYPE_NONE);
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0)
    expect_echo(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

TEST_F(create, flags_are_refused) {
  const CUmemAllocationProp p = properties();
  CUmemGenericAllocationHandle handle = 0;
  const CUresult got = cu().MemCreate(&handle, page, &p, 1);
  EXPECT_EQ(got, CUDA_ERROR_INVALID_VALUE) << name_of(got);
  if (got == CUDA_SUCCESS) cu().MemRelease(handle);
}

}  // namespace
}  // namespace stillmap::conformance
