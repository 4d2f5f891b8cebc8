#include "tools/stillmap/common/size.h"

#include <fmt/format.h>

#include <cctype>
#include <cmath>

namespace stillmap::tool {
namespace {

constexpr std::uint64_t largest = std::uint64_t{1} << 63;

// The shift of a unit, or -1: "" and "B" 0, "K", "KB", "KiB" 10, ...
int shift_of(std::string_view unit) {
  if (unit.empty() || unit == "b") return 0;
  const std::size_t which = std::string_view("kmgt").find(unit.front());
  const std::string_view rest = unit.substr(1);
  if (which == std::string_view::npos || !(rest.empty() || rest == "b" || rest == "ib")) return -1;
  return 10 * (static_cast<int>(which) + 1);
}

}  // namespace

outcome<std::uint64_t> parse_size(std::string_view text) {
  const auto wrong = [&](const char *why) {
    return fail(exit_usage, fmt::format("'{}' is not a size: {}", text, why));
  };
  std::string digits, unit;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (unit.empty() && (std::isdigit(u) || c == '.')) {
      digits += c;
    } else if (std::isspace(u)) {
      if (digits.empty() && unit.empty()) return wrong("it begins with a space");
    } else {
      unit += static_cast<char>(std::tolower(u));
    }
  }
  if (digits.empty()) return wrong("write a number and a unit, as in 64M, 1.5G or 4096");
  const int shift = shift_of(unit);
  if (shift < 0) return wrong("the unit is none of B, K, M, G, T (of 1024)");

  const std::size_t point = digits.find('.');
  const std::string whole = digits.substr(0, point);
  const std::string part = point == std::string::npos ? "" : digits.substr(point + 1);
  if (part.find('.') != std::string::npos || (whole.empty() && part.empty())) {
    return wrong("the number has more than one point, or nothing else");
  }
  std::uint64_t value = 0;
  for (const char c : whole) {
    if (value > largest / 10) return wrong("it is over 2^63 bytes");
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  if (value > (largest >> shift)) return wrong("it is over 2^63 bytes");
  value <<= shift;
  if (!part.empty()) {
    const double fraction = std::stod("0." + part) * std::ldexp(1.0, shift);
    if (fraction != std::floor(fraction)) return wrong("it is not a whole number of bytes");
    value += static_cast<std::uint64_t>(fraction);
  }
  return value;
}

double ratio(std::uint64_t bytes, std::uint64_t of) {
  return of == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(of);
}

std::string human_and_exact(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} bytes", bytes);
  return fmt::format("{} ({} bytes)", format_bytes(bytes), format_count(bytes));
}

std::string human_seconds(double seconds) {
  if (seconds >= 0.9995) return fmt::format("{:.2f} s", seconds);
  if (seconds >= 0.0009995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds >= 9.95e-6) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds >= 0.9995e-6) return fmt::format("{:.1f} us", seconds * 1e6);
  return fmt::format("{:.0f} ns", seconds * 1e9);
}

std::string hexadecimal(std::uint64_t address) {
  return fmt::format("{:#x}", address);
}

}  // namespace stillmap::tool
