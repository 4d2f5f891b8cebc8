// A call that allocates or frees memory which the driver serves: counted, and within the program's limit.
#pragma once

#include "preload/service/memory/current_context.h"
#include "preload/service/memory/device_memory.h"
#include "preload/service/memory/served_memory.h"
#include "preload/service/memory/statistics.h"
#include "preload/service/serve.h"

namespace stillmap::preload {

// `call` creates `bytes` on `place`, and stores the handle or address at `at`. Out of memory where they exceed the limit,
// or other processes keep what is missing of the quota. What the allocator keeps for later requests is given up first.
template <class Call>
driver_code allocate_by_driver(current_place place, held_by kind, word at, word bytes, passed why,
                               Call call) noexcept {
  auto reserved = served_memory::reserve(place.device, bytes);
  if (!reserved) return code::out_of_memory;
  driver_code result = call();
  if (result == code::out_of_memory) {
    device_memory *const memory = device_memory::of(place.device);
    if (memory != nullptr && memory->give_up_cache()) result = call();
  }
  if (result == code::success) {
    note_passed(why, bytes);
    served_memory::add(kind, *reinterpret_cast<const word *>(at),
                       {std::move(*reserved), place.context});
  }
  note_work();
  return result;
}

// `call` frees what `taken` holds.
template <class Call>
driver_code free_by_driver(served_memory::holders taken, Call call) noexcept {
  const driver_code result = call();
  if (result != code::success && !taken.empty()) served_memory::put_back(std::move(taken));
  note_work();
  return result;
}

}  // namespace stillmap::preload
