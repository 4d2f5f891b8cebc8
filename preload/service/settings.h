// What the program's environment asks of the preload: variables that begin with STILLMAP_PRELOAD_, which
// `stillmap run` sets. docs/programs.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace stillmap::preload {

struct settings {
  std::size_t limit = SIZE_MAX;  // STILLMAP_PRELOAD_LIMIT: bytes of physical memory on each device
  std::string tag = "program";   // STILLMAP_PRELOAD_TAG: of the memory
  std::string stats;             // STILLMAP_PRELOAD_STATS: a file, or "-" for stderr; empty: none
};

// Read once, at the first call. A value that cannot be read is reported on stderr, and not used.
const settings &given_settings();

}  // namespace stillmap::preload
