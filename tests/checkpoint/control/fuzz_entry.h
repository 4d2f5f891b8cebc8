// Fuzz entry of the control protocol: the first byte selects a decoder, or a server; the others are its
// input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"
#include "tests/support/fuzz.h"

namespace stillmap::control {

enum class fuzz_mode : std::uint8_t {
  requests,    // body of each kind of request; the next byte selects it
  responses,   // the same for responses and progress
  refusal,     // body of a refusal
  connection,  // what a client sends to a server
  count
};

// Describes what went wrong; empty: nothing. The server is of `d`, which holds no memory: no request
// can be carried out but status.
std::string fuzz_control(const device &d, const std::uint8_t *data, std::size_t size);
// Valid messages of every kind.
std::vector<stillmap::testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::control
