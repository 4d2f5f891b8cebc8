// The command `stillmap top`: its options, and what runs it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct top_options {
  std::vector<std::string> folders, filters;
  std::string sort = "held";
  double interval = 1;  // seconds
  bool once = false, json = false;
};
outcome<exit_status> run_top(const top_options &o);

// How long all tasks may take to answer, together: a second, and not more than from one look to the next.
std::chrono::milliseconds answer_time(double interval);

}  // namespace stillmap::tool
