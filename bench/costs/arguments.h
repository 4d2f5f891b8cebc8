// The command line of the program `cost_table`.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "bench/costs/run.h"

namespace stillmap::costs {

struct arguments {
  run_options options;
  std::string out;  // a folder; empty: writes no files
  bool help = false;
};

// `argv` as main() has it; it is reordered. Not thread-safe: getopt_long has global state.
// Errors: what is wrong, as text.
tl::expected<arguments, std::string> parse(int argc, char **argv);

std::string help_text();

}  // namespace stillmap::costs
