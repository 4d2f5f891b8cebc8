// The result of a command: an exit status that scripts can rely on and, on failure, an error.
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/utf8.h"  // printable(): for names that another process or a file chose

namespace stillmap::tool {

enum exit_status : int {
  exit_ok = 0,
  exit_failed = 1,     // the job could not be finished (out of memory, for one), or was cancelled
  exit_usage = 2,      // wrong command line, value or script
  exit_not_found = 3,  // no such driver, device, file, socket, record or tag
  exit_busy = 4,       // in use, or no answer in time
  exit_refused = 5,    // no permission, refused by the peer, or not supported here
  exit_differs = 6,    // a check or a comparison found a difference
  exit_in_doubt = 7,   // whether a task was handed over is not known yet
};

// The end of --help and of the manual pages.
inline constexpr const char *exit_status_help =
    "Exit status: 0 ok; 1 failed (out of memory, for one), or cancelled; 2 wrong usage (command "
    "line, value, script); 3 not "
    "found (driver, device, file, socket, record, tag); 4 busy, or no answer in time; 5 refused "
    "(permission, peer, not supported here); 6 differs (a check or a comparison found a "
    "difference); 7 in doubt (a migration that has to be resolved).";

// The exit status for a library's error, by its code.
exit_status exit_status_of(const error &e);

struct failure {
  exit_status status = exit_failed;
  std::string line;            // one line, without "stillmap: " and newline
  std::optional<error> cause;  // the library's error, where there is one

  // Control characters are replaced.
  failure(exit_status s, const std::string &text);
  failure(
      const error &e);  // the status is that of its code; of a task's refusal, the task's own words
};

// The value of a step of a command, or the failure that ends the command.
template <class T>
using outcome = tl::expected<T, failure>;

inline tl::unexpected<failure> fail(exit_status status, const std::string &line) {
  return tl::unexpected<failure>(failure(status, line));
}
inline tl::unexpected<failure> fail(const error &e) {
  return tl::unexpected<failure>(failure(e));
}
// An error about a path, tag or socket that it does not name yet.
template <class T>
outcome<T> about(result<T> r, const std::string &subject) {
  if (!r) return fail(r.error().about(subject));
  if constexpr (std::is_void_v<T>) {
    return {};
  } else {
    return std::move(*r);
  }
}

// The JSON document that a command with --json prints instead of its result.
std::string json_of(const failure &f, const std::string &command);

}  // namespace stillmap::tool
