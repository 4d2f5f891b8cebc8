// Numbers streams in the order in which they appear.
#pragma once

#include <cstdint>
#include <map>

namespace stillmap::replay {

using stream_numbers = std::map<std::uint64_t, std::uint32_t>;
inline std::uint32_t number_of(stream_numbers &known, std::uint64_t stream) {
  return known.emplace(stream, static_cast<std::uint32_t>(known.size())).first->second;
}

}  // namespace stillmap::replay
