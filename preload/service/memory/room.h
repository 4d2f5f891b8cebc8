// How much memory the program has: what the device and the limit leave.
#pragma once

#include "preload/functions/abi.h"

namespace stillmap::preload {

struct memory_room {
  word free;
  word total;
};

// From what the driver says of a device. What the allocator keeps for later requests is free to the program, unless the
// default pool reserves it. -1: the device is not known.
memory_room room_of(int ordinal, word free, word total) noexcept;

}  // namespace stillmap::preload
