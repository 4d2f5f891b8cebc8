// cuMemSetAccess and cuMemGetAccess: which devices may access a mapping, and the errors of copies
// without access.
#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class access : public vmm_test {
 protected:
  unsigned long long access_of(CUdeviceptr at, CUresult *code) const {
    CUmemLocation where{};
    where.type = CU_MEM_LOCATION_TYPE_DEVICE;
    where.id = 0;
    unsigned long long flags = 0x5a5a;
    *code = cu().MemGetAccess(&flags, &where, at);
    return flags;
  }

  // The first device that device 0's memory can (or cannot) be shared with; -1: none.
  int find_device(bool peer) const {
    for (int other = 1; other < devices; ++other) {
      int can = 0;
      MUST(cu().DeviceCanAccessPeer(&can, other, 0));
      if ((can != 0) == peer) return other;
    }
    return -1;
  }
};

TEST_F(access, a30_one_call_over_several_mappings) {
  reserved range(6 * page);
  physical a(page), b(3 * page), c(2 * page);
  mapped first(range.at, a), second(range.at + page, b), third(range.at + 4 * page, c);
  expect_code(30, "one call over three adjacent mappings of different handles",
              grant(range.at, range.bytes), {CUDA_SUCCESS});
  write_pattern(range.at, range.bytes, 30);  // one copy across all of them
  EXPECT_TRUE(holds_pattern(range.at, range.bytes, 30));
}

TEST_F(access, a31_copy_after_prot_none_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  write_pattern(range.at, page, 31);
  MUST(grant(range.at, page, CU_MEM_ACCESS_FLAGS_PROT_NONE));
  expect_code(31, "a write", try_write(range.at), {CUDA_ERROR_INVALID_VALUE});
  expect_code(31, "a read", try_read(range.at), {CUDA_ERROR_INVALID_VALUE});
  MUST(grant(range.at, page));
  EXPECT_TRUE(holds_pattern(range.at, page, 31)) << "access and contents are two things";
}

TEST_F(access, a32_read_only_reads_and_does_not_write) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  write_pattern(range.at, page, 32);
  MUST(grant(range.at, page, CU_MEM_ACCESS_FLAGS_PROT_READ));
  expect_code(32, "a read", try_read(range.at), {CUDA_SUCCESS});
  expect_code(32, "a write", try_write(range.at), {CUDA_ERROR_INVALID_VALUE});
  EXPECT_TRUE(holds_pattern(range.at, page, 32));
}

TEST_F(access, a33_copy_without_any_access_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  expect_code(33, "a write", try_write(range.at), {CUDA_ERROR_INVALID_VALUE});
  expect_code(33, "a read", try_read(range.at), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(access, a34_over_a_hole_is_refused) {
  reserved range(3 * page);
  physical a(page), c(page);
  mapped first(range.at, a), third(range.at + 2 * page, c);
  expect_code(34, "over a hole in the middle", grant(range.at, range.bytes),
              {CUDA_ERROR_INVALID_VALUE});
  expect_code(34, "over a mapping and a hole after it", grant(range.at, 2 * page),
              {CUDA_ERROR_INVALID_VALUE});
  record(34, "then a copy to the mapped part returned " + name_of(try_write(range.at)));
}

TEST_F(access, a35_of_ordinary_memory_is_refused) {
  allocated memory(page);
  expect_code(35, "on memory of cuMemAlloc", grant(memory.at / page * page, page),
              {CUDA_ERROR_INVALID_VALUE});
  write_pattern(memory.at, page, 35);
  EXPECT_TRUE(holds_pattern(memory.at, page, 35));
}

TEST_F(access, a36_without_descriptors_is_invalid) {
  IN_A_PROCESS_OF_ITS_OWN();  // a driver that does not check would take the suite with it
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  const CUmemAccessDesc desc = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  expect_code(36, "count 0", cu().MemSetAccess(range.at, page, &desc, 0),
              {CUDA_ERROR_INVALID_VALUE});
  expect_code(36, "descriptors NULL", cu().MemSetAccess(range.at, page, nullptr, 1),
              {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(access, a37_of_a_numa_node_to_device_memory_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  CUmemAccessDesc desc = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  desc.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  expect_error(37, "HOST_NUMA 0 on device memory", cu().MemSetAccess(range.at, page, &desc, 1));
  EXPECT_EQ(grant(range.at, page), CUDA_SUCCESS);
}

TEST_F(access, a38_of_a_device_that_is_no_peer_is_refused) {
  const int other = find_device(false);
  if (other < 0 && in_child()) FAIL() << "hostcuda did not become a machine without peers";
  if (other < 0 && cu().is_hostcuda()) {  // any machine is to be had
    child without_peers({}, {{"HOSTCUDA", "profile=multi:2,peers=none"}});
    without_peers.join();
    return;
  }
  if (devices < 2) SKIP_BECAUSE("one device: there is none that could be no peer");
  if (other < 0) SKIP_BECAUSE("every device is a peer of device 0");
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  expect_error(38, "for a device that is no peer",
               grant(range.at, page, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, other));
  MUST(grant(range.at, page));  // for its own device, as before
  write_pattern(range.at, page, 38);
  EXPECT_TRUE(holds_pattern(range.at, page, 38));
}

TEST_F(access, of_a_device_that_does_not_exist_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  EXPECT_NE(grant(range.at, page, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 999), CUDA_SUCCESS);
  EXPECT_EQ(grant(range.at, page), CUDA_SUCCESS);
}

// Access is granted to each device by name; that of one says nothing about another.
TEST_F(access, is_granted_to_each_peer_by_itself) {
  if (devices < 2) SKIP_BECAUSE("one device: no peer");
  const int other = find_device(true);
  if (other < 0) SKIP_BECAUSE("no device is a peer of device 0");
  CUcontext here = nullptr, there = nullptr;
  MUST(cu().CtxGetCurrent(&here));
  MUST(cu().DevicePrimaryCtxRetain(&there, other));
  {
    reserved range(page);
    physical memory(page);
    mapped all(range.at, memory);
    MUST(grant(range.at, page));
    write_pattern(range.at, page, 38);
    // In the other device's context: its own memory, filled from device 0's.
    MUST(cu().CtxSetCurrent(there));
    {
      allocated own(page);
      EXPECT_NE(cu().MemcpyDtoD(own.at, range.at, page), CUDA_SUCCESS)
          << "device 0's access let device " << other << " in";
    }
    const CUmemAccessDesc both[2] = {
        access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
        access_for(other, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
    };
    EXPECT_EQ(cu().MemSetAccess(range.at, page, both, 2), CUDA_SUCCESS);
    {
      allocated own(page);
      EXPECT_EQ(cu().MemcpyDtoD(own.at, range.at, page), CUDA_SUCCESS);
      EXPECT_TRUE(holds_pattern(own.at, page, 38));
    }
    MUST(cu().CtxSetCurrent(here));
  }
  EXPECT_EQ(cu().DevicePrimaryCtxRelease(other), CUDA_SUCCESS);
}

TEST_F(access, a39_get_access_returns_what_was_granted) {
  reserved range(page);
  physical memory(page);
  CUresult code = CUDA_SUCCESS;
  unsigned long long flags = access_of(range.at, &code);
  record(39, "unmapped: " + name_of(code) + ", flags " + std::to_string(flags));
  mapped all(range.at, memory);
  flags = access_of(range.at, &code);
  record(39, "mapped, none granted: " + name_of(code) + ", flags " + std::to_string(flags));
  for (CUmemAccess_flags granted : {CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                                    CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_NONE}) {
    MUST(grant(range.at, page, granted));
    flags = access_of(range.at, &code);
    record(39, "granted " + std::to_string(static_cast<int>(granted)) + ": " + name_of(code) +
                   ", flags " + std::to_string(flags));
    EXPECT_EQ(code, CUDA_SUCCESS);
    EXPECT_EQ(flags, static_cast<unsigned long long>(granted));
  }
}

TEST_F(access, a40_unmap_and_map_reset_it) {
  reserved range(page);
  physical memory(page);
  {
    mapped once(range.at, memory);
    MUST(grant(range.at, page));
    write_pattern(range.at, page, 40);
  }
  mapped again(range.at, memory);
  expect_code(40, "a copy after unmap and map", try_read(range.at), {CUDA_ERROR_INVALID_VALUE});
  MUST(grant(range.at, page));
  EXPECT_TRUE(holds_pattern(range.at, page, 40));
}

}  // namespace
}  // namespace stillmap::conformance
