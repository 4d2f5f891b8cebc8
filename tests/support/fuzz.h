// Shared by the fuzz entries: inputs whose first byte selects the interpretation of the rest, an initial
// corpus, and random mutations of it for builds without a fuzzer.
// tests/system/fuzz/README.md says how an entry is run under libFuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace stillmap::testing {

using fuzz_input = std::vector<std::uint8_t>;

inline fuzz_input fuzz_input_of(std::uint8_t mode, std::span<const std::byte> bytes) {
  fuzz_input input(1, mode);
  for (const std::byte b : bytes) input.push_back(std::to_integer<std::uint8_t>(b));
  return input;
}

// One place or more is changed; `place(size)` chooses it, never the first byte.
template <class Place>
fuzz_input changed_by_dice(fuzz_input input, std::mt19937_64 &random, const Place &place) {
  for (auto n = random() % 4; n < 4 && input.size() > 1; ++n) {
    const std::size_t at = place(input.size());
    switch (random() % 6) {
      case 0:
        input[at] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        input[at] ^= static_cast<std::uint8_t>(1u << random() % 8);
        break;
      case 2:
        input[at] = random() % 2 == 0 ? 0 : 0xff;
        break;
      case 3:
        ++input[at];
        break;
      case 4:
        input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), input[at]);
        break;
      default:
        if (random() % 8 == 0) input.resize(at);
    }
  }
  return input;
}
inline fuzz_input changed_by_dice(fuzz_input input, std::mt19937_64 &random) {
  return changed_by_dice(std::move(input), random,
                         [&](std::size_t size) { return 1 + random() % (size - 1); });
}

// What went wrong is printed, and the process trapped.
inline int fuzz_or_trap(const std::string &wrong) {
  if (wrong.empty()) return 0;
  std::fprintf(stderr, "%s\n", wrong.c_str());
  __builtin_trap();
}

// Into the folder that STILLMAP_FUZZ_CORPUS names, where it does.
inline int write_corpus(const char *name, const std::vector<fuzz_input> &inputs) {
  const char *const folder = std::getenv("STILLMAP_FUZZ_CORPUS");
  if (folder == nullptr) return 0;
  int n = 0;
  for (const fuzz_input &input : inputs) {
    std::ofstream out(std::string(folder) + '/' + name + '-' + std::to_string(n++),
                      std::ios::binary);
    out.write(reinterpret_cast<const char *>(input.data()), static_cast<long>(input.size()));
  }
  return 0;
}

}  // namespace stillmap::testing

// libFuzzer's two functions: `run` takes one input and returns what went wrong, `corpus` makes good
// inputs.
#define STILLMAP_FUZZ_ENTRY(name, run, corpus)                                        \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size);  \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) { \
    return stillmap::testing::fuzz_or_trap(run(data, size));                          \
  }                                                                                   \
  extern "C" int LLVMFuzzerInitialize(int *, char ***);                               \
  extern "C" int LLVMFuzzerInitialize(int *, char ***) {                              \
    if (std::getenv("STILLMAP_FUZZ_CORPUS") == nullptr) return 0;                     \
    return stillmap::testing::write_corpus(name, corpus());                           \
  }
