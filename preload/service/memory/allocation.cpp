// cuMemAlloc, cuMemAllocPitch and cuMemFree. What the driver would refuse goes to the driver, so that its error is
// the driver's own.
#include "preload/service/ipc/exported_blocks.h"
#include "preload/service/memory/heaps.h"
#include "preload/service/memory/pending.h"
#include "preload/service/memory/queued_work.h"
#include "preload/service/memory/serve_by_driver.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

// Every pitch is a multiple of what textures and coalesced access need on all devices.
constexpr word pitch_unit = 512;

void *pointer(word address) noexcept {
  return reinterpret_cast<void *>(address);
}

// Frees what captures have kept, where that is possible now.
bool free_kept(const caching_allocator &heap) noexcept {
  if (!any_pending()) return false;
  driver_code ignored = code::success;
  if (queued_work::wait(ignored, heap) != queued_work::outcome::done) return false;
  free_pending();
  return true;
}

driver_code allocate(caching_allocator &heap, word at, word bytes) noexcept {
  auto block = heap.allocate(bytes, stream_ref::legacy());
  if (!block && block.error().is(errc::out_of_memory) && free_kept(heap)) {
    block = heap.allocate(bytes, stream_ref::legacy());
  }
  if (!block) return code_of(block.error());
  *reinterpret_cast<word *>(at) = reinterpret_cast<word>(*block);
  return code::success;
}

}  // namespace

driver_code serve(numbered<function::cuMemAlloc_v2>, word at, word bytes) noexcept {
  caching_allocator *const heap = at != 0 && bytes != 0 ? heaps::current() : nullptr;
  if (heap != nullptr) return allocate(*heap, at, bytes);
  return allocate_by_driver(at != 0 ? current() : current_place(), held_by::address, at, bytes,
                            passed::not_served,
                            [&] { return pass_on<function::cuMemAlloc_v2>(at, bytes); });
}

driver_code serve(numbered<function::cuMemAllocPitch_v2>, word at, word pitch, word width,
                  word height, number element) noexcept {
  const bool legal = at != 0 && pitch != 0 && width != 0 && height != 0 &&
                     width <= SIZE_MAX - pitch_unit &&
                     (element == 4 || element == 8 || element == 16);
  const word row = (width + pitch_unit - 1) / pitch_unit * pitch_unit;
  word bytes = 0;
  caching_allocator *const heap =
      legal && !__builtin_mul_overflow(row, height, &bytes) ? heaps::current() : nullptr;
  if (heap == nullptr) {
    return allocate_by_driver(
        legal ? current() : current_place(), held_by::address, at, bytes, passed::not_served,
        [&] { return pass_on<function::cuMemAllocPitch_v2>(at, pitch, width, height, element); });
  }
  const driver_code result = allocate(*heap, at, bytes);
  if (result == code::success) *reinterpret_cast<word *>(pitch) = row;
  return result;
}

driver_code serve(numbered<function::cuMemFree_v2>, word at) noexcept {
  caching_allocator *const heap = heaps::owner(at);
  if (heap == nullptr) {
    return free_by_driver(served_memory::take_out(held_by::address, at),
                          [&] { return pass_on<function::cuMemFree_v2>(at); });
  }
  driver_code result = code::success;
  switch (queued_work::wait(result, *heap)) {
    case queued_work::outcome::failed:
      return result;
    case queued_work::outcome::capturing:
      if (!heap->usable_size(pointer(at)) || exported_blocks::is_kept(pointer(at)))
        return code::invalid_value;
      return free_later(*heap, pointer(at));
    case queued_work::outcome::done:
      break;
  }
  if (any_pending()) free_pending();
  const status freed = exported_blocks::free(*heap, pointer(at));
  return freed ? code::success : code_of(freed.error());
}

}  // namespace stillmap::preload
