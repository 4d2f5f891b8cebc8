// Formatting for reports: byte counts, numbers, XML and JSON escapes. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stillmap::text {

// Appends formatted text; the format is that of printf.
[[gnu::format(printf, 2, 3)]] void print(std::string &out, const char *format, ...);

std::string human(std::uint64_t bytes);    // "1.25 GiB", "140 GiB", "512 B"
std::string hex(std::uint64_t address);    // "0x7f0012340000"
std::string xml(std::string_view plain);   // for text and attributes
std::string json(std::string_view plain);  // with its quotes

}  // namespace stillmap::text
