// The running test once more, in a process of its own.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace stillmap::testing {

// The environment variable; empty where it is not set.
std::string environment_variable(const char *name);

// Starts this program with the filter of the running test, so that it sets up the same fixture, with `variables`
// ("NAME=value") in the place of those of these names. `output`: a descriptor that reads its standard output, for the
// caller to close. Throws std::runtime_error.
pid_t spawn_this_test(const std::vector<std::string> &variables, int &output);

}  // namespace stillmap::testing
