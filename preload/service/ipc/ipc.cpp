// cuIpcGetMemHandle, cuIpcOpenMemHandle and cuIpcCloseMemHandle. The driver refuses them for memory that is mapped: the
// handle says where the pages are to be had as descriptors. Handles of the driver's own memory stay the driver's.
#include <cstring>
#include <optional>

#include "preload/service/ipc/exported_blocks.h"
#include "preload/service/ipc/exporter.h"
#include "preload/service/ipc/imported_blocks.h"
#include "preload/service/ipc/refusal.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/serve.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::preload {
namespace {

// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, without which the driver refuses.
constexpr number lazy_peer_access = 1;

result<memory_handle> export_block(caching_allocator &heap, word at) {
  STILLMAP_ASSIGN_OR_RETURN(const virtual_range block,
                            heap.find_block(reinterpret_cast<const void *>(at)));
  if (block.begin.value() != at) return make_driver_error(code::invalid_value, "not its begin");
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t server, start_exporter());
  return exported_blocks::all().handle_of(heap, block, server);
}

// The program's current device; the driver's error where there is no context.
driver_code current_device(number &device) noexcept {
  return pass_on<function::cuCtxGetDevice>(reinterpret_cast<word>(&device));
}

// Nothing: the driver's.
std::optional<driver_code> open_block(word at, const bytes_64 &handle, number flags) noexcept {
  const auto ours = parse_handle(handle);
  if (!ours || imported_blocks::in_child()) return std::nullopt;
  if (at == 0 || flags != lazy_peer_access) return code::invalid_value;
  number device = 0;
  if (const driver_code none = current_device(device); none != code::success) return none;
  if (is_own_exporter(ours->server)) return code::invalid_context;
  return imported_blocks::all().open(at, *ours, static_cast<int>(device));
}

}  // namespace

driver_code serve(numbered<function::cuIpcGetMemHandle>, word handle, word at) noexcept {
  caching_allocator *const heap = handle != 0 ? heaps::owner(at) : nullptr;
  if (heap == nullptr || !heaps::exportable(heap->device().ordinal()))
    return pass_on<function::cuIpcGetMemHandle>(handle, at);
  number device = 0;
  if (const driver_code none = current_device(device); none != code::success) return none;
  const auto made = with_host_memory("stillmap_preload", [&] { return export_block(*heap, at); });
  if (!made) {
    return made.error().is(errc::invalid_argument) ? code::invalid_value : code_of(made.error());
  }
  std::memcpy(reinterpret_cast<void *>(handle), &*made, sizeof *made);
  return code::success;
}

driver_code serve(numbered<function::cuIpcOpenMemHandle>, word at, bytes_64 handle,
                  number flags) noexcept {
  if (const auto opened = open_block(at, handle, flags)) return *opened;
  return pass_on<function::cuIpcOpenMemHandle>(at, handle, flags);
}
driver_code serve(numbered<function::cuIpcOpenMemHandle_v2>, word at, bytes_64 handle,
                  number flags) noexcept {
  if (const auto opened = open_block(at, handle, flags)) return *opened;
  return pass_on<function::cuIpcOpenMemHandle_v2>(at, handle, flags);
}

driver_code serve(numbered<function::cuIpcCloseMemHandle>, word at) noexcept {
  if (imported_blocks::find(at)) {
    number device = 0;
    if (const driver_code none = current_device(device); none != code::success) return none;
    if (const auto closed = imported_blocks::all().close(at)) return *closed;
  }
  const driver_code result = pass_on<function::cuIpcCloseMemHandle>(at);
  note_work();
  return result;
}

}  // namespace stillmap::preload
