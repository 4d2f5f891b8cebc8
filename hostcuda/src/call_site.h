// Call site of a driver call: the innermost return addresses outside this library. Symbols are
// resolved only when a report is read.
#pragma once

#include <string>

namespace hostcuda {

struct call_site {
  static constexpr unsigned max_frames = 5;
  void *frames[max_frames];
  unsigned count = 0;
};

// Returns the calling thread's frames outside this library.
// Cost: one stack walk, about a microsecond.
call_site capture_call_site();

// Formats as "f+0x12 (program) < g+0x8 (program)"; "unknown place" without frames.
std::string describe(const call_site &site);

}  // namespace hostcuda
