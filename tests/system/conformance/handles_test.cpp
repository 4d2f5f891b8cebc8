// cuMemRetainAllocationHandle, and the errors of exporting a handle.
#include <unistd.h>

#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class handles : public vmm_test {};

TEST_F(handles, a46_retain_of_an_interior_address_is_the_handle) {
  reserved range(3 * page);
  physical a(page), b(2 * page);
  mapped first(range.at, a), second(range.at + page, b);
  for (std::size_t offset : {page, page + 4096 + 8, 3 * page - 1}) {
    CUmemGenericAllocationHandle got = 0;
    const auto address = reinterpret_cast<void *>(static_cast<std::uintptr_t>(range.at + offset));
    const CUresult code = cu().MemRetainAllocationHandle(&got, address);
    ASSERT_EQ(code, CUDA_SUCCESS) << name_of(code);
    EXPECT_EQ(got, b.handle) << "at offset " << offset;
    EXPECT_EQ(cu().MemRelease(got), CUDA_SUCCESS) << "it is a reference of its own";
  }
  record(46, "three addresses inside one mapping gave the handle of its creation");
}

TEST_F(handles, a47_retain_of_an_unmapped_address_is_refused) {
  reserved range(page);
  CUmemGenericAllocationHandle got = 0;
  const auto address = reinterpret_cast<void *>(static_cast<std::uintptr_t>(range.at));
  const CUresult code = cu().MemRetainAllocationHandle(&got, address);
  expect_code(47, "a reserved, unmapped address", code, {CUDA_ERROR_INVALID_VALUE});
  if (code == CUDA_SUCCESS) cu().MemRelease(got);
}

TEST_F(handles, a_retained_handle_keeps_the_memory) {
  reserved range(2 * page);
  physical memory(page);
  CUmemGenericAllocationHandle kept = 0;
  {
    mapped first(range.at, memory);
    MUST(grant(range.at, page));
    write_pattern(range.at, page, 47);
    MUST(cu().MemRetainAllocationHandle(
        &kept, reinterpret_cast<void *>(static_cast<std::uintptr_t>(range.at))));
    MUST(cu().MemRelease(memory.handle));
    memory.forget();
  }
  {
    mapped second(range.at + page, page, kept);
    EXPECT_EQ(grant(second.at, page), CUDA_SUCCESS);
    EXPECT_TRUE(holds_pattern(second.at, page, 47));
  }
  EXPECT_EQ(cu().MemRelease(kept), CUDA_SUCCESS);
}

TEST_F(handles, a49_export_of_a_type_not_asked_for_is_refused) {
  physical memory(page);
  int fd = -1;
  const CUresult got = cu().MemExportToShareableHandle(&fd, memory.handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  expect_code(49, "a file descriptor of memory created without", got, {CUDA_ERROR_INVALID_VALUE});
  if (got == CUDA_SUCCESS && fd >= 0) close(fd);
}

TEST_F(handles, a50_export_with_flags_is_refused) {
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0)
    SKIP_BECAUSE("the device exports no file descriptors (attribute 103 is 0)");
  physical memory(page, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int fd = -1;
  const CUresult got = cu().MemExportToShareableHandle(&fd, memory.handle,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
  expect_code(50, "flags 1", got, {CUDA_ERROR_INVALID_VALUE});
  if (got == CUDA_SUCCESS && fd >= 0) close(fd);
}

TEST_F(handles, a51_import_of_a_windows_handle_is_not_supported) {
  CUmemGenericAllocationHandle got = 0;
  int nothing = 0;  // something readable, should the driver look
  const CUresult code = cu().MemImportFromShareableHandle(&got, &nothing, CU_MEM_HANDLE_TYPE_WIN32);
  expect_code(51, "WIN32", code, {CUDA_ERROR_NOT_SUPPORTED});
  if (code == CUDA_SUCCESS) cu().MemRelease(got);
}

}  // namespace
}  // namespace stillmap::conformance
