// What the program did, for `stillmap run`: counted where it is cheap, read from the allocators at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "preload/functions/abi.h"

namespace stillmap::preload {

// Memory that the driver serves itself, and why.
enum class passed : std::uint8_t {
  managed,       // cuMemAllocManaged
  arrays,        // cuArrayCreate and the like
  own_mappings,  // cuMemCreate: the program maps memory itself
  graph_memory,  // cuMemAllocAsync on a stream that captures
  other_pools,   // cuMemAllocFromPoolAsync, or a pool that the program set
  not_served,    // no allocator: another namespace, a device that cannot be opened
  count
};

void note_passed(passed why, word bytes) noexcept;

// Whether there is anything to say: the program has allocated device memory.
bool any_allocation() noexcept;

// One JSON object, with a line for each device.
// Errors: throws std::bad_alloc.
std::string describe_program();

}  // namespace stillmap::preload
