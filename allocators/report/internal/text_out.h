// Addresses and streams as text, the same in every report. Internal.
#pragma once

#include <cstdint>
#include <string>

#include "stillmap/vmm/stream.h"

namespace stillmap::text {

std::string hex(std::uint64_t address);  // "0x7f0012340000"
std::string name_of(stream_ref stream);  // "the default stream", "stream 0x7f0012340000"

inline std::uint64_t handle_of(stream_ref stream) {
  return reinterpret_cast<std::uintptr_t>(stream.get());
}

}  // namespace stillmap::text
