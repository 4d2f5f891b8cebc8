// The fuzz entry: the first byte of an input selects a target, the rest is its input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace stillmap::testing {

enum class fuzz_target : std::uint8_t {
  buffer,
  vector,
  sequence_text,
  config,
  driver_name,
  trace_text,
  count
};

// Runs one input. Returns a failure as text that can be pasted into a regression test; empty: none.
std::string fuzz_one(const std::uint8_t *data, std::size_t size);

}  // namespace stillmap::testing

// libFuzzer's entry point. Prints a failure and traps.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);
