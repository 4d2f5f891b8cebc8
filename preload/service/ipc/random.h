// Random bytes, which another process cannot guess.
#pragma once

#include <cstddef>
#include <span>

#include "stillmap/vmm/base/error.h"

namespace stillmap::preload {

// Errors: the system's.
status fill_randomly(std::span<std::byte> bytes) noexcept;

}  // namespace stillmap::preload
