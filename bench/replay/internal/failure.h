// Errors of the replay library. Their text is made at run time, so it is the error's detail.
#pragma once

#include <string>
#include <utility>

#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::replay {

inline tl::unexpected<error> fail(errc c, std::string text) {
  const error e{make_error_code(c), "replay"};
  return tl::unexpected<error>(e.with({.cause = std::move(text)}));
}

// An operation on a file that the system refused; `code` is an errno.
inline tl::unexpected<error> fail_system(int code, const std::string &file, const char *reason) {
  const operation_scope scope("replay");
  return make_system_error(code, reason, file);
}

}  // namespace stillmap::replay
