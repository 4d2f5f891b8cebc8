// Devices without virtual memory management return 801 from every VMM call.
#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class vmm_absent : public driver_test {};

TEST_F(vmm_absent, every_call_is_not_supported) {
  if (has_vmm()) SKIP_BECAUSE("device 0 has virtual memory management");
  SKIP_WITHOUT(MemCreate);
  IN_A_PROCESS_OF_ITS_OWN();  // some of these get handles that are none
  const CUmemAllocationProp p = properties();
  const CUmemAccessDesc desc = access_for(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemLocation where = desc.location;
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp told{};
  std::size_t size = 0;
  unsigned long long flags = 0;
  int fd = -1;
  constexpr std::size_t bytes = 2 * mib;
  constexpr CUdeviceptr somewhere = CUdeviceptr{1} << 40;
  const auto expect = [](const char *name, CUresult got) {
    EXPECT_EQ(got, CUDA_ERROR_NOT_SUPPORTED) << name << " returned " << name_of(got);
  };
  expect("cuMemGetAllocationGranularity",
         cu().MemGetAllocationGranularity(&size, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  expect("cuMemAddressReserve", cu().MemAddressReserve(&at, bytes, 0, 0, 0));
  expect("cuMemCreate", cu().MemCreate(&handle, bytes, &p, 0));
  expect("cuMemMap", cu().MemMap(somewhere, bytes, 0, 1, 0));
  expect("cuMemSetAccess", cu().MemSetAccess(somewhere, bytes, &desc, 1));
  expect("cuMemGetAccess", cu().MemGetAccess(&flags, &where, somewhere));
  expect("cuMemUnmap", cu().MemUnmap(somewhere, bytes));
  expect("cuMemAddressFree", cu().MemAddressFree(somewhere, bytes));
  expect("cuMemExportToShareableHandle",
         cu().MemExportToShareableHandle(&fd, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  expect("cuMemImportFromShareableHandle",
         cu().MemImportFromShareableHandle(&handle, nullptr,
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  expect("cuMemGetAllocationPropertiesFromHandle",
         cu().MemGetAllocationPropertiesFromHandle(&told, 1));
  expect("cuMemRelease", cu().MemRelease(1));
  if (cu().MemRetainAllocationHandle != nullptr)
    expect("cuMemRetainAllocationHandle",
           cu().MemRetainAllocationHandle(
               &handle, reinterpret_cast<void *>(static_cast<std::uintptr_t>(somewhere))));
}

TEST_F(vmm_absent, ordinary_memory_works_all_the_same) {
  if (has_vmm()) SKIP_BECAUSE("device 0 has virtual memory management");
  allocated memory(3 * mib);
  write_pattern(memory.at, 3 * mib, 1);
  EXPECT_TRUE(holds_pattern(memory.at, 3 * mib, 1));
}

}  // namespace
}  // namespace stillmap::conformance
