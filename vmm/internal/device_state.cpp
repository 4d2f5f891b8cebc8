#include "stillmap/vmm/internal/device_state.h"

namespace stillmap {

void pool_list::add(const std::shared_ptr<page_pool> &p) {
  const lock_guard lock(mutex_);
  std::erase_if(pools_, [](const auto &weak) { return weak.expired(); });
  pools_.push_back(p);
}

std::shared_ptr<page_pool> pool_list::next(std::size_t &i) {
  const lock_guard lock(mutex_);
  while (i < pools_.size()) {
    if (auto pool = pools_[i++].lock()) return pool;
  }
  return nullptr;
}

}  // namespace stillmap
