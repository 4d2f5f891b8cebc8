// Fuzz entry of the handoff protocol: the first byte selects the decoder, the others are its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fuzz.h"

namespace stillmap::handoff {

enum class fuzz_mode : std::uint8_t {
  hello,       // body of a hello
  layout,      // body of a layout
  peer_error,  // body of an error
  stream,      // headers and bodies from a socket
  count
};

// Describes what went wrong; empty: nothing.
std::string fuzz_wire(const std::uint8_t *data, std::size_t size);
// Valid messages of every kind.
std::vector<stillmap::testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::handoff
