// Sizes, times and addresses as text, beside vmm/base/format.h. Binary units: 1K = 1024.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stillmap/vmm/base/format.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// "64M", "1.5G", "4096", "2 GiB", "16MB": a number and an optional unit of 1024 (B K M G T).
// Errors: exit_usage, with what is wrong: no number, an unknown unit, not whole bytes, over 2^63.
outcome<std::uint64_t> parse_size(std::string_view text);

double ratio(std::uint64_t bytes, std::uint64_t of);  // 0 if `of` is
std::string human_and_exact(std::uint64_t bytes);     // "1 GiB (1,073,741,824 bytes)"
std::string human_seconds(double seconds);            // "1.23 s", "4.5 ms", "800 us", "40 ns"
std::string hexadecimal(std::uint64_t address);       // "0x7f0012340000"

}  // namespace stillmap::tool
