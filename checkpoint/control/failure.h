// How a request fails: what stillmap::error says, with texts of its own, since it may have come
// from another process.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>

#include "stillmap/vmm/error.h"

namespace stillmap::control {

struct failure {
  std::error_code code;  // as in an error: compares equal to conditions and to std::errc
  std::string operation, reason;
  std::uint64_t value = 0, limit = 0;
  std::string text;  // all of it in one line, and what else there was to say

  failure() = default;
  failure(const error &e)
      : code(e.code),
        operation(e.operation),
        reason(e.reason),
        value(e.value),
        limit(e.limit),
        text(e.message()) {}

  bool is(errc c) const { return code == make_error_condition(c); }
};

template <class T>
using outcome = tl::expected<T, failure>;

inline tl::unexpected<failure> fail(const error &e) {
  return tl::unexpected<failure>(failure(e));
}

}  // namespace stillmap::control
