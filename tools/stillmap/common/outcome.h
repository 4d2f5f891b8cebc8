// How a command ends: an exit status that scripts can rely on, and one line that says why.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "stillmap/vmm/error.h"

namespace stillmap::tool {

enum exit_status : int {
  exit_ok = 0,
  exit_failed = 1,     // the check failed, or the job could not be finished
  exit_usage = 2,      // a wrong option, file, size or script
  exit_no_driver = 3,  // no CUDA driver, or no such device
};

// The end of every command's --help.
inline constexpr const char *exit_status_help =
    "Exit status: 0 ok; 1 the check failed or the job could not be finished;\n"
    "2 wrong usage (option, file, size, script); 3 no driver or no such device.";

struct failure {
  exit_status status = exit_failed;
  std::string line;  // without "stillmap: " and newline
};

template <class T>
using outcome = tl::expected<T, failure>;

inline tl::unexpected<failure> fail(exit_status status, std::string line) {
  return tl::unexpected<failure>(failure{status, std::move(line)});
}
inline tl::unexpected<failure> fail(const error &e) {
  return fail(exit_failed, e.message());
}

}  // namespace stillmap::tool
