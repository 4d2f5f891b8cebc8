// Pointer attributes, and legacy IPC, which does not support mapped memory.
#include <array>
#include <memory>

#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class pointer_attributes : public vmm_test {
 protected:
  template <typename T>
  T ask(CUpointer_attribute which, CUdeviceptr at) const {
    T value{};
    const CUresult got = cu().PointerGetAttribute(&value, which, at);
    EXPECT_EQ(got, CUDA_SUCCESS) << "attribute " << which << ": " << name_of(got);
    return value;
  }
};

TEST_F(pointer_attributes, a54_address_range_is_the_enclosing_mapping) {
  reserved range(4 * page);
  physical a(page), b(2 * page);
  mapped first(range.at, a), second(range.at + page, b);
  MUST(grant(range.at, 3 * page));
  CUdeviceptr base = 0;
  std::size_t size = 0;
  const CUresult got = cu().MemGetAddressRange(&base, &size, range.at + page + 4096);
  record(54, "returned " + name_of(got) + ", " + std::to_string(size) + " bytes, " +
                 std::to_string(base - range.at) + " into the reservation");
  ASSERT_EQ(got, CUDA_SUCCESS);
  EXPECT_EQ(base, range.at + page);
  EXPECT_EQ(size, 2 * page);
}

TEST_F(pointer_attributes, a55_range_start_and_size_are_the_reservation) {
  reserved range(4 * page);
  physical memory(page);
  mapped there(range.at + page, memory);
  MUST(grant(there.at, page));
  const auto start = ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, there.at + 512);
  const auto size = ask<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, there.at + 512);
  record(55, std::to_string(size) + " bytes, starting " + std::to_string(there.at - start) +
                 " before the mapping");
  EXPECT_EQ(start, range.at);
  EXPECT_EQ(size, range.bytes);
}

TEST_F(pointer_attributes, a56_mapped_follows_map_and_unmap) {
  reserved range(page);
  physical memory(page);
  {
    mapped all(range.at, memory);
    MUST(grant(range.at, page));
    EXPECT_EQ(ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_MAPPED, range.at), 1u);
  }
  // "A boolean": how many bytes a driver writes for it is not documented, the first one says it.
  std::array<unsigned char, 8> told;
  told.fill(0xff);
  const CUresult got = cu().PointerGetAttribute(told.data(), CU_POINTER_ATTRIBUTE_MAPPED, range.at);
  const int value = told[0];
  record(56, "1 while mapped; after unmap " + name_of(got) + ", value " + std::to_string(value));
  EXPECT_EQ(got, CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
}

TEST_F(pointer_attributes, a57_not_capable_of_legacy_ipc) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  const auto capable =
      ask<std::uint64_t>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range.at);
  record(57, "value " + std::to_string(capable));
  EXPECT_EQ(capable, 0u);
}

TEST_F(pointer_attributes, a58_legacy_ipc_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  CUipcMemHandle handle;
  expect_error(58, "cuIpcGetMemHandle", cu().IpcGetMemHandle(&handle, range.at));
}

TEST_F(pointer_attributes, a59_allowed_handle_types_are_those_requested) {
  reserved range(2 * page);
  physical plain(page);
  mapped first(range.at, plain);
  MUST(grant(first.at, page));
  auto types = ask<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, first.at);
  record(59, "created with none: " + std::to_string(types));
  EXPECT_EQ(types, 0u);
  if (attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0) return;
  physical exportable(page, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  mapped second(range.at + page, exportable);
  MUST(grant(second.at, page));
  types = ask<unsigned long long>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, second.at);
  record(59, "created with a file descriptor: " + std::to_string(types));
  EXPECT_EQ(types, static_cast<unsigned long long>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

TEST_F(pointer_attributes, a60_sync_memops_is_not_supported) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  int on = 1;
  expect_code(60, "setting SYNC_MEMOPS",
              cu().PointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, range.at),
              {CUDA_ERROR_NOT_SUPPORTED});
}

// Needs no VMM.
class foreign_pointer : public driver_test {};

TEST_F(foreign_pointer, a61_has_attributes_of_zero) {
  const auto memory = std::make_unique<std::array<unsigned char, 4096>>();
  CUcontext context = reinterpret_cast<CUcontext>(std::uintptr_t{1});
  CUmemorytype type = CU_MEMORYTYPE_DEVICE;
  CUdeviceptr device_pointer = 1;
  unsigned managed = 1;
  std::array<CUpointer_attribute, 4> which{
      CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  std::array<void *, 4> out{&context, &type, &device_pointer, &managed};
  expect_code(61, "four attributes of a pointer from new",
              cu().PointerGetAttributes(4, which.data(), out.data(),
                                        reinterpret_cast<std::uintptr_t>(memory->data())),
              {CUDA_SUCCESS});
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(static_cast<int>(type), 0);
  EXPECT_EQ(device_pointer, 0u);
  EXPECT_EQ(managed, 0u);
}

}  // namespace
}  // namespace stillmap::conformance
