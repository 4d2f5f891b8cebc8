#include "python/src/fork_guard.h"

#include <atomic>
#include <memory>

#include "stillmap/vmm/base/fork_watch.h"

namespace stillmap::python {
namespace {

std::atomic<const fork_watch *> first_use{nullptr};

}  // namespace

void note_driver_use() {
  if (first_use.load(std::memory_order_acquire) != nullptr) return;
  auto made = std::make_unique<fork_watch>();
  const fork_watch *none = nullptr;
  if (first_use.compare_exchange_strong(none, made.get())) (void)made.release();
}

bool forked_after_use() noexcept {
  const fork_watch *const used = first_use.load(std::memory_order_acquire);
  return used != nullptr && used->in_child();
}

}  // namespace stillmap::python
