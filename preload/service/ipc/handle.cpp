#include "preload/service/ipc/handle.h"

#include <cstring>

namespace stillmap::preload {

std::string memory_handle::address() const {
  return "@stillmap-ipc-" + std::to_string(process) + "-" + std::to_string(server);
}

std::optional<memory_handle> parse_handle(const bytes_64 &from) noexcept {
  memory_handle h;
  std::memcpy(static_cast<void *>(&h), &from, sizeof h);
  if (h.magic != memory_handle::own_magic) return std::nullopt;
  return h;
}

}  // namespace stillmap::preload
