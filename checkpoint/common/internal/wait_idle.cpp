#include "stillmap/checkpoint/common/internal/wait_idle.h"

#include "stillmap/vmm/context.h"

namespace stillmap::checkpoint {

status wait_until_idle(const device &d, const std::optional<fence> &idle) {
  if (idle) return fence(*idle).wait();
  const context_guard guard(d.driver(), d.context());
  return guard.entered() ? d.driver().synchronize_context() : guard.entered();
}

}  // namespace stillmap::checkpoint
