#include "stillmap/checkpoint/common/internal/host_memory.h"

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/internal/device_state.h"

namespace stillmap::checkpoint {

result<host_memory> host_memory::create(const device &d, std::size_t bytes) {
  if (bytes == 0) return host_memory();
  const context_guard guard(d.driver(), d.context());
  if (!guard.entered()) return tl::unexpected(guard.entered().error());
  const auto at = d.driver().allocate_host(bytes);
  if (!at) return tl::unexpected(at.error());
  return host_memory(d, static_cast<std::byte *>(*at), bytes);
}

host_memory::~host_memory() {
  if (at_ == nullptr) return;
  const context_guard guard(*device_->drv, device_->context());
  const status s = guard.entered() ? device_->drv->free_host(at_) : guard.entered();
  if (!s) report_background_error(s.error());
}

}  // namespace stillmap::checkpoint
