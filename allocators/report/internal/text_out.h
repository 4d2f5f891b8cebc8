// Formatting for reports: addresses, streams, XML escapes. Internal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stillmap/vmm/stream.h"

namespace stillmap::text {

// Appends formatted text; the format is that of printf.
[[gnu::format(printf, 2, 3)]] void print(std::string &out, const char *format, ...);

std::string hex(std::uint64_t address);  // "0x7f0012340000"
std::string name_of(stream_ref stream);  // "the default stream", "stream 0x7f0012340000"
// For text and attributes. Valid UTF-8, whatever the text is: U+FFFD for what is none.
std::string xml(std::string_view plain);

inline std::uint64_t handle_of(stream_ref stream) {
  return reinterpret_cast<std::uintptr_t>(stream.get());
}

}  // namespace stillmap::text
