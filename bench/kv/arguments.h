// The command line of the program `kv_bench`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "bench/kv/serving_model.h"

namespace stillmap::kv_bench {

struct kv_arguments {
  serving_model model;
  std::string trace;                // a file; empty: generated requests
  std::size_t requests = SIZE_MAX;  // the first ones
  std::uint64_t seed = 1;           // of generated requests
  std::string policy;               // one alone
  std::string csv, json, svg;       // files
  std::string operations;           // a file; no policy runs
  std::size_t samples = 400;        // of csv and svg; up to twice as many
  bool markdown = false, smoke = false, help = false;
};

// Errors: what is wrong, as text.
tl::expected<kv_arguments, std::string> parse_arguments(const std::vector<std::string> &words);

std::string help_text();

}  // namespace stillmap::kv_bench
