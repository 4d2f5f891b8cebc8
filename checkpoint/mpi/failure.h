// How something that all ranks do together fails: the same on all of them.
#pragma once

#include <string>
#include <system_error>

#include "stillmap/checkpoint/image/failure.h"

namespace stillmap::mpi {

// `code` compares as image::failure's does; of a rank on another machine as well.
struct failure {
  int rank = 0;  // that failed: of several, the lowest
  std::error_code code;
  std::string text;  // what that rank's own failure says

  bool is(errc c) const { return code == make_error_condition(c); }
  std::string message() const { return "rank " + std::to_string(rank) + ": " + text; }
};

template <class T>
using outcome = tl::expected<T, failure>;

}  // namespace stillmap::mpi
