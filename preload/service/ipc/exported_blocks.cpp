#include "preload/service/ipc/exported_blocks.h"

#include <unistd.h>

#include <algorithm>

#include "preload/service/ipc/random.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::preload {

constinit std::atomic<bool> exported_blocks::any_{false};

exported_blocks::lease::~lease() {
  all().end_lease(*this);
}

exported_blocks &exported_blocks::all() noexcept {
  static undying<exported_blocks> blocks;
  return *blocks;
}

result<memory_handle> exported_blocks::handle_of(caching_allocator &heap, virtual_range block,
                                                 std::uint64_t server) {
  const lock_guard lock(mutex_);
  const auto known = blocks_.find(block.begin.value());
  if (known != blocks_.end()) {
    if (known->second.freed) return make_error(errc::invalid_argument, "the block was freed");
    return known->second.handle;
  }
  memory_handle h;
  STILLMAP_RETURN_IF_ERROR(fill_randomly(h.secret));
  h.process = ::getpid();
  h.server = server;
  h.block = ++last_number_;
  h.offset = block.begin.value() % heap.device().capabilities().page_bytes;
  h.bytes = block.bytes;
  blocks_.emplace(block.begin.value(), exported{h, &heap, block});
  any_.store(true, std::memory_order_release);
  return h;
}

std::unique_ptr<exported_blocks::lease> exported_blocks::open(const memory_handle &h) {
  const lock_guard lock(mutex_);
  const auto found = std::find_if(blocks_.begin(), blocks_.end(), [&](const auto &b) {
    return b.second.handle == h && !b.second.freed;
  });
  if (found == blocks_.end()) return nullptr;
  exported &e = found->second;
  auto made = std::make_unique<lease>(*e.heap, e.block);
  ++e.leases;
  return made;
}

status exported_blocks::free_exported(caching_allocator &heap, void *block,
                                      std::optional<stream_ref> last_used_on) noexcept {
  STILLMAP_ASSIGN_OR_RETURN(const bool now, all().retire(heap, block, last_used_on));
  if (!now) return {};
  return last_used_on ? heap.free(block, *last_used_on) : heap.free(block);
}

bool exported_blocks::is_kept(const void *block) noexcept {
  if (!any_.load(std::memory_order_acquire)) return false;
  exported_blocks &b = all();
  const lock_guard lock(b.mutex_);
  const auto found = b.blocks_.find(reinterpret_cast<word>(block));
  return found != b.blocks_.end() && found->second.freed;
}

result<bool> exported_blocks::retire(caching_allocator &heap, void *block,
                                     std::optional<stream_ref> last_used_on) {
  const lock_guard lock(mutex_);
  const auto found = blocks_.find(reinterpret_cast<word>(block));
  if (found == blocks_.end()) return true;
  exported &e = found->second;
  if (e.freed)
    return make_error(errc::invalid_argument, "the block was freed already", found->first);
  if (e.leases == 0) {
    blocks_.erase(found);
    return true;
  }
  if (last_used_on) STILLMAP_RETURN_IF_ERROR(heap.record_use(block, *last_used_on));
  e.freed = true;
  return false;
}

void exported_blocks::end_lease(const lease &l) noexcept {
  {
    const lock_guard lock(mutex_);
    const auto found = blocks_.find(l.block().begin.value());
    exported &e = found->second;  // while a lease lives, its block stays
    if (--e.leases != 0 || !e.freed) return;
    blocks_.erase(found);
  }
  report_if_failed(l.heap().free(reinterpret_cast<void *>(l.block().begin.value())));
}

}  // namespace stillmap::preload
