// One input, any bytes: the first chooses what they are given to, the rest is the input.
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

// What went wrong, as text that pastes back as a regression test; empty: nothing.
std::string fuzz_one(const std::uint8_t *data, std::size_t size);

}  // namespace stillmap::testing

// libFuzzer's entry point. A finding is printed, and the process trapped.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);
