// Runs a program on a disk that loses what was not synced: the power goes at each of its changes, each
// of its syncs fails, and each of its syncs is left out, which must show.
#pragma once

#include <functional>

#include "tests/checkpoint/base/simulated_disk.h"

namespace stillmap::image {

// What is found after a crash.
enum class disk_state { old_one, new_one, mixture };

struct disk_scenario {
  const char *what;
  std::function<void(checkpoint::simulated_disk &)> prepare;  // what is there before, durably
  std::function<bool(checkpoint::simulated_disk &)>
      write;  // whether it was told that it has succeeded
  std::function<disk_state(checkpoint::simulated_disk &)> find;
  std::size_t redundant_syncs = 0;  // that need not show when they are left out
};

// Expects the old state or the new one after each crash, and the new one if the program was told so.
// Prints a note.
void check_on_disk(const disk_scenario &s);

}  // namespace stillmap::image
