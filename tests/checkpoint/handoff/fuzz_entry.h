// Fuzz entry of the handoff protocol: the first byte selects a decoder or a whole handoff, the others
// are its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"
#include "tests/support/fuzz.h"

namespace stillmap::handoff {

enum class fuzz_mode : std::uint8_t {
  hello,       // body of a hello
  layout,      // body of a layout
  peer_error,  // body of an error
  stream,      // headers and bodies from a socket
  session,     // a peer of send() or receive(): hostile_peer.h
  count
};

// Describes what went wrong; empty: nothing. Sessions run on `d`, which exports pages and holds no other
// memory.
std::string fuzz_handoff(const device &d, const std::uint8_t *data, std::size_t size);
// Valid messages of every kind, and whole sessions.
std::vector<stillmap::testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::handoff
