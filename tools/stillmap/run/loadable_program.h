// Whether a library can be loaded into a program that is about to start.
#pragma once

#include <string>

#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// Returns the path of the program, searched as a shell does.
// Errors: exit_not_found (no such program), exit_refused (it runs with the rights of another user, so that the
//         loader ignores what its caller wants loaded; it is linked statically; it is for another machine).
outcome<std::string> find_loadable_program(const std::string &name);

}  // namespace stillmap::tool
