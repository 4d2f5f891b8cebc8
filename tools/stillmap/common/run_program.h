// Runs a program in the foreground.
#pragma once

#include <string>
#include <vector>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Runs the program with these variables ("NAME=value") beside those of this process, and returns its wait status.
// Meanwhile this process ignores SIGINT and SIGQUIT, which a terminal sends to both.
// Errors: exit_not_found (no such program), exit_failed (it cannot be started).
outcome<int> run_program(const std::vector<std::string> &program,
                         const std::vector<std::string> &variables);

// "was ended by signal 9", "ended with status 1".
std::string end_text(int wait_status);

}  // namespace stillmap::tool
