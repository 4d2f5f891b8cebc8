// Fuzzer entry. The first byte of an input selects a decoder, the rest is what the peer sent.
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

// Describes a failed check; empty: none failed. Sessions run against a receiver on `d`, which must
// hold no other memory.
std::string fuzz_migration(const device &d, const std::uint8_t *data, std::size_t size);
// Initial corpus: valid messages of every kind, a record, and whole sessions.
std::vector<stillmap::testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::migration
