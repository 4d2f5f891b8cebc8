// Random bytes for ids and keys.
#pragma once

#include <cstddef>
#include <span>

#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// From the system's generator. Errors: the system's. Threads: safe.
status fill_random(std::span<std::byte> bytes);

}  // namespace stillmap::image
