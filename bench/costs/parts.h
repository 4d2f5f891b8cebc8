// What is measured, one file each. A part takes what time it is given, adds rows and facts, goes on
// after a refusal with what does not need it, and gives everything back.
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

}  // namespace stillmap::costs
