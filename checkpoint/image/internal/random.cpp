#include "stillmap/checkpoint/image/internal/random.h"

#include <sys/random.h>

#include <cerrno>

namespace stillmap::image {

status fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return make_system_error(errno, "cannot get random bytes");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace stillmap::image
