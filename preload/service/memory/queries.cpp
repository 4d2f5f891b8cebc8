// What the program asks about memory: as for the driver's own, within the limit.
#include <cstddef>
#include <optional>

#include "preload/service/ipc/imported_blocks.h"
#include "preload/service/memory/current_context.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/room.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

constexpr word no_address = 1;

// CUpointer_attribute. Source: cuda.h.
enum attribute : number {
  legacy_ipc_capable = 10,
  range_start = 11,
  range_size = 12,
  allowed_handle_types = 14
};

// Memory that is the driver's to the program, but is mapped.
struct served_memory {
  std::optional<virtual_range>
      block;                // nothing: the page is mapped, but the program has no memory there
  bool has_handle = false;  // from us; otherwise cuIpcGetMemHandle is the driver's
};

// Nothing: the driver's answers are right.
std::optional<served_memory> find_served(word at) noexcept {
  if (caching_allocator *const heap = heaps::owner(at)) {
    served_memory found{std::nullopt, heaps::exportable(heap->device().ordinal())};
    if (const auto block = heap->find_block(reinterpret_cast<const void *>(at))) {
      found.block = *block;
    }
    return found;
  }
  if (const auto imported = imported_blocks::find(at)) return served_memory{imported->block};
  return std::nullopt;
}

// Answers as for memory of cuMemAlloc; for other attributes the driver's answer is right.
void answer(number attribute, const served_memory &m, void *to) noexcept {
  switch (attribute) {
    case legacy_ipc_capable:
      if (m.has_handle) *static_cast<char *>(to) = 1;
      break;
    case range_start:
      *static_cast<word *>(to) = m.block->begin.value();
      break;
    case range_size:
      *static_cast<word *>(to) = m.block->bytes;
      break;
    case allowed_handle_types:
      *static_cast<word *>(to) = 0;
      break;
    default:
      break;
  }
}

}  // namespace

driver_code serve(numbered<function::cuMemGetInfo_v2>, word free, word total) noexcept {
  const driver_code result = pass_on<function::cuMemGetInfo_v2>(free, total);
  if (result != code::success) return result;
  auto &free_bytes = *reinterpret_cast<word *>(free);
  auto &total_bytes = *reinterpret_cast<word *>(total);
  const memory_room room = room_of(current_device(), free_bytes, total_bytes);
  free_bytes = room.free;
  total_bytes = room.total;
  return result;
}

driver_code serve(numbered<function::cuDeviceTotalMem_v2>, word bytes, number device) noexcept {
  const driver_code result = pass_on<function::cuDeviceTotalMem_v2>(bytes, device);
  if (result == code::success) {
    auto &total = *reinterpret_cast<word *>(bytes);
    total = room_of(static_cast<int>(device), 0, total).total;
  }
  return result;
}

driver_code serve(numbered<function::cuMemGetAddressRange_v2>, word base, word bytes,
                  word at) noexcept {
  const auto memory = find_served(at);
  if (!memory) return pass_on<function::cuMemGetAddressRange_v2>(base, bytes, at);
  if (!memory->block) return code::not_found;
  if (base != 0) *reinterpret_cast<word *>(base) = memory->block->begin.value();
  if (bytes != 0) *reinterpret_cast<word *>(bytes) = memory->block->bytes;
  return code::success;
}

driver_code serve(numbered<function::cuPointerGetAttribute>, word data, number attribute,
                  word at) noexcept {
  const driver_code result = pass_on<function::cuPointerGetAttribute>(data, attribute, at);
  const auto memory = result == code::success ? find_served(at) : std::nullopt;
  if (!memory) return result;
  if (!memory->block) return code::invalid_value;
  answer(attribute, *memory, reinterpret_cast<void *>(data));
  return result;
}

driver_code serve(numbered<function::cuPointerGetAttributes>, number count, word attributes,
                  word data, word at) noexcept {
  const driver_code result = pass_on<function::cuPointerGetAttributes>(count, attributes, data, at);
  const auto memory = result == code::success ? find_served(at) : std::nullopt;
  if (!memory) return result;
  // The page is mapped, but to the program there is no memory: as the driver answers for an address that is none.
  if (!memory->block)
    return pass_on<function::cuPointerGetAttributes>(count, attributes, data, no_address);
  for (number i = 0; i < count; ++i) {
    answer(reinterpret_cast<const number *>(attributes)[i], *memory,
           reinterpret_cast<void **>(data)[i]);
  }
  return result;
}

}  // namespace stillmap::preload
