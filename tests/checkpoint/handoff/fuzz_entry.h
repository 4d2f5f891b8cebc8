// One input, any bytes: the first says how they are taken, the rest is what the other side sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fuzz.h"

namespace stillmap::handoff {

enum class fuzz_mode : std::uint8_t {
  hello,    // the body of a greeting
  layout,   // the body of a layout
  refusal,  // the body of a refusal
  stream,   // what comes out of the socket: headers and bodies
  count
};

// What went wrong; empty: nothing.
std::string fuzz_wire(const std::uint8_t *data, std::size_t size);
// Good messages of every kind, as inputs to begin with.
std::vector<testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::handoff
