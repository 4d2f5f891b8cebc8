// The commands of `stillmap demo`: their options, and what runs them.
#pragma once

#include <cstdint>
#include <string>

#include "tools/stillmap/common/machine.h"

namespace stillmap::tool {

struct growth_demo_options {
  driver_options driver;
  std::string file;
  std::string svg = "out/address-space.svg";
  bool json = false;
  bool copying = false;
  bool no_comparison = false;
  std::uint64_t limit = 0;  // 0: none
  std::uint64_t chunk = std::uint64_t{16} << 20;
  std::uint64_t at_least = UINT64_MAX;  // not given
};
// exit_differs: the buffer did not grow in place, bytes were copied, or the content is wrong.
outcome<exit_status> run_growth_demo(const growth_demo_options &o);

struct lifecycle_demo_options {
  driver_options driver;
  std::string part, folder;  // of a child process
};
// exit_differs: the task's memory was not the same in another process.
outcome<exit_status> run_lifecycle_demo(const lifecycle_demo_options &o);

}  // namespace stillmap::tool
