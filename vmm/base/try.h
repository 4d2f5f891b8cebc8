// Macros that return an error to the caller, as Abseil's of these names, and a function that reports
// an error that no caller can receive. For sources and internal headers only: no installed header
// includes this file.
#pragma once

#include <utility>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

inline void report_if_failed(const status &s) noexcept {
  if (!s) report_background_error(s.error());
}

}  // namespace stillmap

// Evaluates a result or status; on failure returns its error from the calling function. A result that
// has a name is not copied: copying its value may need host memory, and the copy is noexcept.
#define STILLMAP_RETURN_IF_ERROR(...)                                                              \
  do {                                                                                             \
    if (auto &&stillmap_status_ = (__VA_ARGS__); !stillmap_status_)                                \
      return ::tl::unexpected(std::forward<decltype(stillmap_status_)>(stillmap_status_).error()); \
  } while (false)

// `declaration = value of the result`; on failure returns the error from the calling function. The
// expression must not be a result that is used again.
#define STILLMAP_ASSIGN_OR_RETURN(declaration, ...)                                       \
  STILLMAP_ASSIGN_OR_RETURN_1(STILLMAP_TRY_NAME(stillmap_result_, __LINE__), declaration, \
                              __VA_ARGS__)
#define STILLMAP_ASSIGN_OR_RETURN_1(name, declaration, ...)    \
  auto name = (__VA_ARGS__);                                   \
  if (!name) return ::tl::unexpected(std::move(name).error()); \
  declaration = *std::move(name)
#define STILLMAP_TRY_NAME(prefix, line) STILLMAP_TRY_NAME_1(prefix, line)
#define STILLMAP_TRY_NAME_1(prefix, line) prefix##line
