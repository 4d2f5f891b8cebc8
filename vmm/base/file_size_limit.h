// The limit on the size of files (RLIMIT_FSIZE). The kernel ends a process that exceeds it by SIGXFSZ,
// unless it ignores the signal; a library must not be what ends it.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace stillmap {

// Whether a file may have `bytes`. If not, the call that would make it so is EFBIG.
inline bool is_within_file_size_limit(std::uint64_t bytes) noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         bytes <= limit.rlim_cur;
}

}  // namespace stillmap
