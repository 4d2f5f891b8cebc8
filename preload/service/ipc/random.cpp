#include "preload/service/ipc/random.h"

#include <sys/random.h>

#include <cerrno>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::preload {

status fill_randomly(std::span<std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::getrandom(bytes.data(), bytes.size(), 0);
    if (n < 0 && errno != EINTR) return make_system_error(errno, "no random bytes");
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace stillmap::preload
