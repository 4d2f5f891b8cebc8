// Where a driver call came from: a few return addresses above this library, symbolised only when
// somebody reads the report.
#pragma once

#include <string>

namespace hostcuda {

struct call_site {
  static constexpr unsigned max_frames = 5;
  void *frames[max_frames];
  unsigned count = 0;
};

// The calling thread's frames outside this library. Costs a stack walk, a microsecond or so.
call_site capture_call_site();

// "f+0x12 (program) < g+0x8 (program)"; "unknown place" where there is nothing to show.
std::string describe(const call_site &site);

}  // namespace hostcuda
