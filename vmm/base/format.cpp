#include "stillmap/vmm/base/format.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdio>

namespace stillmap {

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0
  while (value >= 1023.95 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  char digits[32];
  // Two decimals for small numbers, one for large, none that is zero.
  std::snprintf(digits, sizeof digits, "%.*f", value < 9.995 ? 2 : 1, value);
  std::string text = digits;
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text + " " + units[unit];
}

std::string format_count(std::uint64_t number) {
  std::string out = std::to_string(number);
  for (std::size_t at = out.size(); at > 3;) out.insert(at -= 3, 1, ',');
  return out;
}

std::string format_fixed(double number, int decimals) {
  char digits[330];  // the largest number has 309 before the point
  const auto written =
      std::to_chars(digits, digits + sizeof digits, number, std::chars_format::fixed, decimals);
  return {digits, written.ptr};
}

}  // namespace stillmap
