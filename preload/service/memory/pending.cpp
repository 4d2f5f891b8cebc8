#include "preload/service/memory/pending.h"

#include <utility>
#include <vector>

#include "preload/service/ipc/exported_blocks.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {
namespace {

struct freed_block {
  caching_allocator *heap;
  void *block;
};

struct waiting_blocks {
  stillmap::mutex mutex;  // a leaf
  std::vector<freed_block> all STILLMAP_GUARDED_BY(mutex);
};

waiting_blocks &waiting() {
  static undying<waiting_blocks> blocks;
  return *blocks;
}

}  // namespace

constinit std::atomic<bool> blocks_pending{false};

driver_code free_later(caching_allocator &heap, void *block) noexcept {
  waiting_blocks &w = waiting();
  const lock_guard lock(w.mutex);
  for (const freed_block &b : w.all) {
    if (b.block == block) return code::invalid_value;
  }
  const status kept =
      with_host_memory("stillmap_preload", [&]() STILLMAP_REQUIRES(w.mutex) -> status {
        w.all.push_back({&heap, block});
        blocks_pending.store(true, std::memory_order_release);
        return {};
      });
  return kept ? code::success : code::out_of_memory;
}

void free_pending() noexcept {
  std::vector<freed_block> now;
  {
    waiting_blocks &w = waiting();
    const lock_guard lock(w.mutex);
    now.swap(w.all);
    blocks_pending.store(false, std::memory_order_relaxed);
  }
  for (const freed_block &b : now) report_if_failed(exported_blocks::free(*b.heap, b.block));
}

}  // namespace stillmap::preload
