// Writes a picture or a report to a file. Internal.
#pragma once

#include <string>
#include <string_view>

#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

// Creates missing folders; replaces a file that exists. Errors: the system's, naming the path.
status write_output(const std::string &path, std::string_view content);

}  // namespace stillmap::replay
