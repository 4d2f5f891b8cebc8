// The search paths of driver libraries.
#pragma once

#include <string>
#include <vector>

namespace stillmap::driver_search {

// What to try for STILLMAP_DRIVER=cuda and =host, best first.
std::vector<std::string> system_candidates();
std::vector<std::string> hostcuda_candidates();

// A path that dlopen() takes as a path: with a slash in it. A bare name could be answered with
// another library of the same SONAME that the process has loaded already.
std::string as_path(std::string file);

}  // namespace stillmap::driver_search
