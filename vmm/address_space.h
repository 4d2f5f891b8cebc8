// The ledger of one device: every reservation, every mapping, what is retiring, and who wants to
// know before anything changes. The truth that inspection, checkpoint and pictures read; hot paths
// never come here. docs/pages.md#the-ledger
// Lock order: collect_mutex_ > mutex_ > page_pool::mutex_. Only collect_mutex_, which one thread
// holds while it undoes retired mappings, is held across driver calls.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page.h"
#include "stillmap/vmm/retiring_list.h"

namespace stillmap {

// Addresses with a name and a generation; freed in the ledger's own time (when nothing retiring is
// left in them). Users hold it through `reservation`.
class address_block {
 public:
  virtual_range range() const { return range_; }
  std::uint64_t id() const { return id_; }
  const std::string &tag() const { return tag_; }
  // Rises whenever the pages behind any part of the block change.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  ~address_block();

 private:
  friend class address_space;
  friend class mapped_buffer;
  friend class remap;
  address_block(device_state &d, virtual_range range, std::string tag, std::uint64_t id)
      : device_(d), range_(range), tag_(std::move(tag)), id_(id) {}
  device_state &device_;
  virtual_range range_;
  std::string tag_;
  std::uint64_t id_;
  std::atomic<std::uint64_t> generation_{0};
  // The block is a growable_buffer's: other plans may not add mappings, which it would not count.
  std::atomic<bool> of_buffer_{false};
};

// What a change of backing looks like to those who registered memory elsewhere (RDMA, UCX, NCCL).
struct backing_event {
  enum class phase {
    about_to_change,  // nothing has happened yet; drop registrations of `range` now
    changed,          // done: register again if wanted
    abandoned,        // it failed and was undone: what was before is again
  };
  phase when;
  virtual_range range;         // where pages come, go or move
  std::uint64_t generation;    // of the block, after the change (before it, when abandoned)
  const address_block *block;  // valid during the call
};
using backing_callback = std::function<void(const backing_event &)>;

enum class mapping_state {
  mapped,
  retiring,
  suspended,  // the addresses are its owner's still, the page is gone: remap_plan::suspend
};

struct mapping_record {
  virtual_range range;
  page_ptr backing;  // empty where suspended, and for a fallback (cuMemAlloc) allocation
  std::vector<access_grant> access;
  mapping_state state = mapping_state::mapped;
  std::uint64_t suspended_by = 0;  // what remap_plan::suspend was given
};

struct block_record {
  virtual_range range;
  std::uint64_t id;
  std::string tag;
  std::uint64_t generation;
  std::size_t mapped_bytes;
  std::size_t mappings;  // suspended ones not included
  std::size_t suspended_bytes = 0;
};

struct address_space_stats {
  std::size_t reserved_bytes = 0;  // address space
  std::size_t mapped_bytes = 0;    // address space with pages behind it; aliases count each time
  physical_size physical;          // created through any pool or by hand and not yet released
  physical_size physical_peak;
  std::size_t live_blocks = 0;
  std::size_t live_mappings = 0;  // retiring ones included: they count against the ceiling
  std::size_t retiring_mappings = 0;
  std::size_t mapping_ceiling = 0;
  std::size_t suspended_bytes = 0;  // address space whose pages were taken away, to come back
};

class remap_plan;

class address_space {
 public:
  explicit address_space(device_state &d);
  ~address_space();
  address_space(const address_space &) = delete;

  // Reserves addresses. `bytes` and `alignment` as given; 0 alignment: the page size.
  // Errors: invalid_argument (zero, or not a multiple of the page size: limit = page size),
  //         address_space_exhausted (limit = the largest the probe saw succeed).
  // Threads: safe. Cost: one reserve.  conformance 2-9
  result<std::shared_ptr<address_block>> reserve(std::size_t bytes, std::size_t alignment,
                                                 device_address hint, std::string tag);

  // Performs the plan, all or nothing. remap.h
  status apply(remap_plan &&plan);

  // The mappings in `range` (whole ones) stop being the owner's now and are unmapped once `idle`
  // has passed: at once if it has. Pages whose last mapping goes return to their pool under `idle`.
  // Errors: as remap. Cost: one unmap per contiguous run when passed, none otherwise.
  status retire(std::shared_ptr<address_block> block, virtual_range range, fence idle);

  // Takes retiring mappings back, as far from the start of `range` as the same pages are still
  // there, with `access`, and are nobody else's (aliased, forked or spliced pages are not taken
  // back): no driver call but the wait (`consumer` waits for the fence; without it the host).
  // Returns the bytes taken back; `idle` receives the fence they were under, for let_go.
  result<std::size_t> revive(virtual_range range, const std::vector<access_grant> &access,
                             std::optional<stream_ref> consumer, fence &idle);
  // Undoes a revive. Cannot fail.
  void let_go(std::shared_ptr<address_block> block, virtual_range range, fence idle);

  // Unmaps whatever is retiring and has passed its fence; with `wait`, all of it.
  // Failures stay retiring and are reported to the error sink. Returns what was unmapped.
  std::size_t collect(bool wait = false);
  // The same, waiting, for one range: afterwards nothing retires in it, or the error.
  status settle(virtual_range range);

  // Pages that only wait for a fence to be unmapped, for use elsewhere now: they may be mapped at a
  // second address at once, and `consumer` is made to wait for the fence. At most `n`, into `out`.
  // conformance 29
  status steal_retiring(std::size_t n, std::size_t page_bytes,
                        const physical_properties &properties, stream_ref consumer,
                        std::vector<page_ptr> &out);

  // Called before and after every change of backing on this device. Keep the result alive for as
  // long as wanted.
  // Threads: callbacks run on the thread that changes, while the buffer that changes is locked.
  // They
  //          may read these books and call the driver. They must not use that buffer, change
  //          mappings, wait for a thread that does either, or throw.
  using subscription = std::shared_ptr<const backing_callback>;
  [[nodiscard]] subscription on_backing_change(backing_callback cb);

  // Books. Threads: safe; each is a consistent copy.
  address_space_stats stats() const;
  std::vector<block_record> blocks() const;
  std::vector<mapping_record> mappings(virtual_range within) const;  // address order
  std::vector<mapping_record> mappings() const;
  std::shared_ptr<address_block> block_at(device_address at) const;

  // Entered by owners that do not go through a plan: the cuMemAlloc fallback, pools,
  // physical_memory.
  void enter_fallback(virtual_range range);
  void leave_fallback(virtual_range range);
  void physical_created(std::size_t bytes);
  void physical_released(std::size_t bytes);

  // Called by ~address_block: frees the addresses.
  void release_block(address_block &block) noexcept;
  // Called by a dying pool: strikes out mappings of its pages that the driver would not undo.
  void abandon(const page_owner &pool) noexcept;
  // Called by a dying device: lets go of the addresses of what would not be unmapped.
  void abandon_retiring() noexcept;

 private:
  friend class remap;
  struct entry {
    ledger_page_ptr backing;
    std::size_t bytes = 0;
    std::shared_ptr<const std::vector<access_grant>> access;
    bool retiring = false;
    std::uint64_t suspended_by = 0;  // not 0: no page, and nothing is mapped
  };
  using retiree = retiring_range;
  using entry_map = std::map<std::uint64_t, entry>;
  struct touched_range {
    std::shared_ptr<address_block> block;
    virtual_range range;
  };

  // First entry that begins at or after `at`; requires mutex_.
  entry_map::iterator lower_locked(device_address at) { return mappings_.lower_bound(at.value()); }
  // The entry after `it`. Stepping past the last one climbs the whole tree, and growing at the end
  // would do that each time.
  entry_map::iterator after_locked(entry_map::iterator it) {
    return it == std::prev(mappings_.end()) ? mappings_.end() : std::next(it);
  }
  static bool nobody_elses(const entry &e);
  bool set_retiring_locked(virtual_range range);
  void erase_locked(entry_map::iterator it);
  void forget_suspended_locked(virtual_range range);
  std::size_t collect_from(std::vector<retiree> &due, bool wait, status &outcome);
  std::shared_ptr<address_block> block_at_locked(device_address at) const;
  void notify(backing_event::phase when, const std::vector<touched_range> &touched);

  device_state &device_;
  std::mutex collect_mutex_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<address_block>> blocks_;  // by address
  entry_map mappings_;
  // Buffers grow at their ends: what comes next belongs right behind this, without a search.
  entry_map::iterator last_entered_ = mappings_.end();
  std::map<std::uint64_t, mapping_record> fallbacks_;
  retiring_list retiring_;
  std::vector<std::weak_ptr<const backing_callback>> callbacks_;
  std::size_t suspended_ = 0;  // entries
  address_space_stats stats_;
  std::uint64_t next_block_ = 1;
};

}  // namespace stillmap
