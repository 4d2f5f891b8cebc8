#include "stillmap/checkpoint/common/internal/host_memory.h"

#include "stillmap/vmm/context.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::checkpoint {

result<host_memory> host_memory::create(const device &d, std::size_t bytes) {
  host_memory out;
  if (bytes == 0) return out;
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(void *const data, d.driver().allocate_host(bytes));
  out.device_ = d;
  out.data_ = static_cast<std::byte *>(data);
  out.bytes_ = bytes;
  return out;
}

host_memory::~host_memory() {
  if (data_ == nullptr) return;
  const context_guard guard(device_->driver(), device_->context());
  const status s = guard.entered() ? device_->driver().free_host(data_) : guard.entered();
  if (!s) report_background_error(s.error());
}

}  // namespace stillmap::checkpoint
