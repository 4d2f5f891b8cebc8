// The blocks of this process that have a handle. A block that the program frees while another process has it open is
// kept until that one closes it or dies, so that its pages are nobody else's meanwhile: as with the driver, whose
// memory lives as long as a mapping of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "preload/functions/abi.h"
#include "preload/service/ipc/handle.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::preload {

class exported_blocks {
 public:
  // Keeps a block while it lives, whatever the program frees.
  class lease {
   public:
    lease(caching_allocator &heap, virtual_range block) noexcept : heap_(heap), block_(block) {}
    ~lease();
    lease(const lease &) = delete;
    lease &operator=(const lease &) = delete;

    caching_allocator &heap() const { return heap_; }
    virtual_range block() const { return block_; }

   private:
    caching_allocator &heap_;
    const virtual_range block_;
  };

  // Of this process. A forked child has no allocators, and asks for nothing here.
  static exported_blocks &all() noexcept;

  // The handle of a block: the same until it is freed. `server`: of the socket.
  // Errors: the system's (no random bytes); throws std::bad_alloc.
  result<memory_handle> handle_of(caching_allocator &heap, virtual_range block,
                                  std::uint64_t server) STILLMAP_EXCLUDES(mutex_);
  // Null: there is no block with this handle, or it was freed. Throws std::bad_alloc.
  std::unique_ptr<lease> open(const memory_handle &h) STILLMAP_EXCLUDES(mutex_);

  // As the allocator's own, once no other process has the block open. Every free of the program comes here.
  static status free(caching_allocator &heap, void *block,
                     std::optional<stream_ref> last_used_on = std::nullopt) noexcept {
    if (any_.load(std::memory_order_acquire)) return free_exported(heap, block, last_used_on);
    return last_used_on ? heap.free(block, *last_used_on) : heap.free(block);
  }
  // Whether the program has freed a block that is kept.
  static bool is_kept(const void *block) noexcept;

 private:
  struct exported {
    memory_handle handle;
    caching_allocator *heap;
    virtual_range block;
    std::size_t leases = 0;
    bool freed = false;  // by the program
  };

  static status free_exported(caching_allocator &heap, void *block,
                              std::optional<stream_ref> last_used_on) noexcept;
  // True: the block was not exported, or is not any more; the caller frees it.
  result<bool> retire(caching_allocator &heap, void *block, std::optional<stream_ref> last_used_on)
      STILLMAP_EXCLUDES(mutex_);
  void end_lease(const lease &l) noexcept STILLMAP_EXCLUDES(mutex_);

  static std::atomic<bool> any_;  // there has been one
  mutex mutex_;                   // before those of the allocators; not held while anything is sent
  std::map<word, exported> blocks_ STILLMAP_GUARDED_BY(mutex_);  // by address
  std::uint64_t last_number_ STILLMAP_GUARDED_BY(mutex_) = 0;
};

}  // namespace stillmap::preload
