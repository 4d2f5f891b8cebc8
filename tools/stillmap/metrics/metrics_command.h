// The command `stillmap metrics`: its options, and what runs it.
#pragma once

#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct metrics_options {
  std::vector<std::string> folders;
  std::string listen = "127.0.0.1:9835", socket, textfile;
  double interval = 15;  // seconds, of a text file
  bool once = false;
};
outcome<exit_status> run_metrics(const metrics_options &o);

}  // namespace stillmap::tool
