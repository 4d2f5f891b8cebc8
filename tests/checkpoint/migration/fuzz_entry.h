// One input, any bytes: the first says how they are taken, the rest is what the other side sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"
#include "tests/support/fuzz.h"

namespace stillmap::migration {

enum class fuzz_mode : std::uint8_t {
  header,
  hello,
  layout,
  outcome_query,
  numbers,  // and digests, and a session
  record,   // lines of a record, sealed first
  session,  // messages over several channels to a receiver: hostile_source.h
  count
};

// What went wrong; empty: nothing. Sessions come to a receiver on `d`, which holds nothing else.
std::string fuzz_migration(const device &d, const std::uint8_t *data, std::size_t size);
// Good messages of every kind, a record, and whole sessions, as inputs to begin with.
std::vector<testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::migration
