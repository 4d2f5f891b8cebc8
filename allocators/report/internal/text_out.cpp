#include "stillmap/allocators/report/internal/text_out.h"

#include <charconv>

namespace stillmap::text {

std::string hex(std::uint64_t address) {
  char digits[16];
  const auto written = std::to_chars(digits, digits + sizeof digits, address, 16);
  return "0x" + std::string(digits, written.ptr);
}

std::string name_of(stream_ref stream) {
  const std::uint64_t handle = handle_of(stream);
  return handle == 0 ? "the default stream" : "stream " + hex(handle);
}

}  // namespace stillmap::text
