// Numbers as text, the same in every message and report. Allocate host memory: may throw std::bad_alloc.
#pragma once

#include <cstdint>
#include <string>

namespace stillmap {

// "512 B", "1.25 GiB", "140.4 GiB": rounded to at most two decimals, binary units.
std::string format_bytes(std::uint64_t bytes);
// "1,073,741,824"
std::string format_count(std::uint64_t number);
// "0.50": with this many decimals and a point, whatever the locale of the process.
// Requires: `decimals` is at most 9, and the number is finite.
std::string format_fixed(double number, int decimals);

}  // namespace stillmap
