// Sizes from text, as environment variables have them.
#pragma once

#include <cstddef>
#include <string_view>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

// "1536", "1.5KiB", "40GiB", "40G": powers of 1024. Errors: invalid_argument, of the variable `name`.
result<std::size_t> parse_bytes(std::string_view text, const char *name);

}  // namespace stillmap
