// Takes what another process hands over, and holds it.
#pragma once

#include <string>

#include "tools/stillmap/cli/command.h"

namespace stillmap::tool {

struct take_command {
  std::string socket, control;
  driver_options where;
  double wait = 3600;  // seconds
  bool hold = true, json = false;
};

// Errors: nobody came; what handoff::take says; the socket's. Prints when it has the memory.
outcome<exit_status> run_take(const take_command &o);

}  // namespace stillmap::tool
