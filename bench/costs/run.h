// The program `cost_table` without its command line.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/costs/table.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::costs {

struct run_options {
  double seconds = 240;
  bool quick = false;
  std::vector<std::string> only;  // names of parts; empty: all
  std::function<void(const std::string &)> progress = [](const std::string &) {};
};

// The number of samples of everything, whatever the time.
constexpr std::size_t least_samples(bool quick) {
  return quick ? 2 : 5;
}

// Errors: no device to measure. Other refusals are in the table.
result<table> measure(driver &drv, const run_options &options);

}  // namespace stillmap::costs
