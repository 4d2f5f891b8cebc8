// Which card has enough memory for a program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "stillmap/vmm/base/json_writer.h"

namespace stillmap::tool {

inline constexpr std::uint64_t context_bytes = std::uint64_t{512}
                                               << 20;  // of a CUDA context, about

struct card {
  unsigned gib = 0;  // as it is sold; 0: none has as much
  const char *such_as = "";
};

// The smallest of the common sizes that has this many bytes besides a CUDA context.
card smallest_card(std::uint64_t bytes);
std::string text_of(const card &c);  // "a card of 24 GiB (RTX 4090, L4)"
void write(json_writer &json, std::string_view key, const card &c);

}  // namespace stillmap::tool
