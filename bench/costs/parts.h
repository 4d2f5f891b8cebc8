// The parts of the measurement, one file each. A part keeps to its time, adds rows and facts,
// continues after a refusal with what does not depend on it, and gives everything back.
#pragma once

#include <vector>

#include "bench/costs/machine.h"
#include "bench/costs/table.h"
#include "bench/costs/time_left.h"

namespace stillmap::costs {

struct part {
  const char *name;
  const char *what;
  hostcuda_memory memory;
  bool needs_vmm;
  double weight;  // of the time
  // `quick`: to see that it runs.
  void (*measure)(const machine &m, time_left left, bool quick, table &out);
};
const std::vector<part> &all_parts();

void measure_small(const machine &m, time_left left, bool quick, table &out);
void measure_sizes(const machine &m, time_left left, bool quick, table &out);
void measure_adjacent(const machine &m, time_left left, bool quick, table &out);
void measure_threads(const machine &m, time_left left, bool quick, table &out);
void measure_live(const machine &m, time_left left, bool quick, table &out);
void measure_ceiling(const machine &m, time_left left, bool quick, table &out);
void measure_touch(const machine &m, time_left left, bool quick, table &out);
void measure_waits(const machine &m, time_left left, bool quick, table &out);
void measure_capture(const machine &m, time_left left, bool quick, table &out);

// Calls once(times) for as many samples as `left` allows, and adds a row for each call that it
// timed, and one for a refusal. The first run is not counted: it pays for set-up that happens once.
template <class Once>
status sample(const time_left &left, call_times &times, const char *against, double x, table &out,
              Once &&once) {
  call_times first;
  status done = once(first);
  for (std::size_t n = 0; done && left.more(n); ++n) done = once(times);
  out.add(times, against, x);
  if (!done) out.refused(done.error(), against, x);
  return done;
}

}  // namespace stillmap::costs
