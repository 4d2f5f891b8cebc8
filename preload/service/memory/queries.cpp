// What the program asks about memory: as for the driver's own, within the limit.
#include <algorithm>
#include <cstddef>

#include "preload/service/memory/heaps.h"
#include "preload/service/memory/room.h"
#include "preload/service/serve.h"
#include "preload/service/settings.h"

namespace stillmap::preload {
namespace {

constexpr word no_address = 1;

// CUpointer_attribute. Source: cuda.h.
enum attribute : number { range_start = 11, range_size = 12 };

// Answers what concerns the block; false: the driver's answer is right.
bool answer(number attribute, const virtual_range &block, void *to) noexcept {
  switch (attribute) {
    case range_start:
      *static_cast<word *>(to) = block.begin.value();
      return true;
    case range_size:
      *static_cast<word *>(to) = block.bytes;
      return true;
    default:
      return false;
  }
}

}  // namespace

driver_code serve(numbered<function::cuMemGetInfo_v2>, word free, word total) noexcept {
  const driver_code result = pass_on<function::cuMemGetInfo_v2>(free, total);
  if (result != code::success) return result;
  auto &free_bytes = *reinterpret_cast<word *>(free);
  auto &total_bytes = *reinterpret_cast<word *>(total);
  number device = 0;
  caching_allocator *heap = nullptr;
  if (pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device)) == code::success) {
    heap = heaps::of_device(static_cast<int>(device));
  }
  const memory_room room = room_of(heap, free_bytes, total_bytes);
  free_bytes = room.free;
  total_bytes = room.total;
  return result;
}

driver_code serve(numbered<function::cuDeviceTotalMem_v2>, word bytes, number device) noexcept {
  const driver_code result = pass_on<function::cuDeviceTotalMem_v2>(bytes, device);
  if (result == code::success) {
    auto &total = *reinterpret_cast<word *>(bytes);
    total = std::min<word>(total, given_settings().limit);
  }
  return result;
}

driver_code serve(numbered<function::cuMemGetAddressRange_v2>, word base, word bytes,
                  word at) noexcept {
  caching_allocator *const heap = heaps::owner(at);
  if (heap == nullptr) return pass_on<function::cuMemGetAddressRange_v2>(base, bytes, at);
  const auto block = heap->find_block(reinterpret_cast<const void *>(at));
  if (!block) return code::not_found;
  if (base != 0) *reinterpret_cast<word *>(base) = block->begin.value();
  if (bytes != 0) *reinterpret_cast<word *>(bytes) = block->bytes;
  return code::success;
}

driver_code serve(numbered<function::cuPointerGetAttribute>, word data, number attribute,
                  word at) noexcept {
  const driver_code result = pass_on<function::cuPointerGetAttribute>(data, attribute, at);
  caching_allocator *const heap = result == code::success ? heaps::owner(at) : nullptr;
  if (heap == nullptr) return result;
  const auto block = heap->find_block(reinterpret_cast<const void *>(at));
  if (!block) return code::invalid_value;
  answer(attribute, *block, reinterpret_cast<void *>(data));
  return result;
}

driver_code serve(numbered<function::cuPointerGetAttributes>, number count, word attributes,
                  word data, word at) noexcept {
  const driver_code result = pass_on<function::cuPointerGetAttributes>(count, attributes, data, at);
  caching_allocator *const heap = result == code::success ? heaps::owner(at) : nullptr;
  if (heap == nullptr) return result;
  const auto block = heap->find_block(reinterpret_cast<const void *>(at));
  // The page is mapped, but to the program there is no memory: as the driver answers for an address that is none.
  if (!block) return pass_on<function::cuPointerGetAttributes>(count, attributes, data, no_address);
  for (number i = 0; i < count; ++i) {
    answer(reinterpret_cast<const number *>(attributes)[i], *block,
           reinterpret_cast<void **>(data)[i]);
  }
  return result;
}

}  // namespace stillmap::preload
