#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {

void pool_list::add(const std::shared_ptr<page_pool> &p) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pools_, [](const auto &weak) { return weak.expired(); });
  pools_.push_back(p);
}

std::vector<std::shared_ptr<page_pool>> pool_list::others(const page_pool &asking) {
  std::vector<std::shared_ptr<page_pool>> out;
  const std::lock_guard lock(mutex_);
  for (const auto &weak : pools_) {
    auto pool = weak.lock();
    if (pool != nullptr && pool.get() != &asking) out.push_back(std::move(pool));
  }
  return out;
}

}  // namespace stillmap
