// The ledger of one device: every reservation, every mapping, the retiring mappings, and the callbacks
// that are run before and after a change. Inspection, checkpoints and pictures read it; hot paths do
// not use it. docs/pages.md#the-ledger
// Lock order: reserve_mutex_, collect_mutex_, mutex_, page_pool::mutex_. Only the first two, under which
// one thread reserves addresses and one unmaps retired mappings, are held across driver calls.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page.h"

namespace stillmap {

struct ledger;
struct mapping_entry;

// Told under the address space's lock: call nothing of it.
class suspension_listener {
 public:
  virtual ~suspension_listener() = default;
  // The block has suspended places from now on, or has none any more.
  virtual void on_suspension(bool any) noexcept = 0;
};

// A reserved address range with a tag and a generation. Its addresses are freed when the last owner
// and the last retiring mapping in it are gone. Users hold it through `reservation`.
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
  friend class removal;
  address_block(device_state &d, std::string tag, std::shared_ptr<suspension_listener> listener)
      : device_(d), tag_(std::move(tag)), listener_(std::move(listener)) {}

  device_state &device_;
  virtual_range range_;  // as id_: set before anybody else has the block
  std::string tag_;
  const std::shared_ptr<suspension_listener> listener_;  // nullptr: none
  std::size_t suspended_ = 0;                            // places; under the address space's mutex_
  std::uint64_t id_ = 0;                                 // 0: it has no addresses yet
  std::atomic<std::uint64_t> generation_{0};
  // The block is a growable_buffer's: other plans may not add mappings, which it would not count.
  std::atomic<bool> of_buffer_{false};
};

// A change of the pages behind a range. Code that registers memory (RDMA, UCX, NCCL) needs these
// events to drop and renew its registrations.
struct backing_event {
  enum class phase {
    about_to_change,  // before the change: drop registrations of `range` now
    changed,          // after the change: register again if wanted
    abandoned,        // the change failed and was undone: the old pages are mapped
  };
  phase when;
  virtual_range range;         // where pages are mapped, unmapped or moved
  std::uint64_t generation;    // of the block, after the change (before it, when abandoned)
  const address_block *block;  // valid during the call
};
using backing_callback = std::function<void(const backing_event &)>;

enum class mapping_state {
  mapped,
  retiring,
  suspended,  // the addresses stay reserved by their owner without a page: remap_plan::suspend
  released,   // as suspended, but for good: the contents were forgotten, or went to another process
};

// In place of an id that suspended a page: released. Nobody resumes it; growable_buffer::commit maps a
// new page there.
inline constexpr std::uint64_t suspended_for_good = UINT64_MAX;

struct mapping_record {
  virtual_range range;
  page_ptr
      backing;  // empty where suspended or released, and for a fallback (cuMemAlloc) allocation
  std::vector<access_grant> access;
  mapping_state state = mapping_state::mapped;
  std::uint64_t suspended_by = 0;  // the id given to remap_plan::suspend
};

struct block_record {
  virtual_range range;
  std::uint64_t id;
  std::string tag;
  std::uint64_t generation;
  std::size_t mapped_bytes;
  std::size_t mappings;  // suspended and released ones not included
  std::size_t suspended_bytes = 0;
  std::size_t released_bytes = 0;
};

struct address_space_stats {
  std::size_t reserved_bytes = 0;  // address space
  std::size_t mapped_bytes = 0;    // mapped address space; an alias counts again
  physical_size physical;          // created through any pool or by hand and not yet released
  physical_size physical_peak;
  std::size_t live_blocks = 0;
  std::size_t live_mappings = 0;  // retiring ones included: they count against the ceiling
  std::size_t retiring_mappings = 0;
  std::size_t mapping_ceiling = 0;
  std::size_t suspended_bytes = 0;  // address space whose pages are suspended
  std::size_t released_bytes = 0;   // and where they were released for good
};

class remap_plan;

class address_space {
 public:
  explicit address_space(device_state &d);
  ~address_space();
  address_space(const address_space &) = delete;

  // Reserves addresses. `bytes` and `alignment` as given; 0 alignment: the page size.
  // Errors: invalid_argument (zero, or not a multiple of the page size: limit = page size),
  //         address_space_exhausted (limit = the most bytes that can be reserved now: tried).
  // Threads: safe. Cost: one reserve; where it fails, about 40 more to find the limit.
  // conformance 2-9
  result<std::shared_ptr<address_block>> reserve(
      std::size_t bytes, std::size_t alignment, device_address hint, std::string tag,
      std::shared_ptr<suspension_listener> listener = nullptr);
  // For a size that is a wish: where no `bytes` are free, reserves 1/16 of the largest range that is, so
  // that others find addresses too, but at least `least` bytes.
  // Errors, threads, cost: as reserve() of `least` bytes.
  result<std::shared_ptr<address_block>> reserve_up_to(
      std::size_t bytes, std::size_t least, std::size_t alignment, device_address hint,
      std::string tag, std::shared_ptr<suspension_listener> listener = nullptr);

  // Performs the plan, all or nothing. remap.h
  status apply(remap_plan &&plan);

  // Takes the whole mappings in `range` from their owner now, and unmaps them once `idle` has passed
  // (at once if it has). A page without another mapping returns to its pool under `idle`.
  // Errors: invalid_argument (not whole live mappings), those of the driver. Takes no host memory.
  // Cost:   one unmap per contiguous run when `idle` has passed, none otherwise.
  status retire(std::shared_ptr<address_block> block, virtual_range range, fence idle)
      STILLMAP_EXCLUDES(mutex_);
  // The places in `range` that `by` suspended are released: their contents are gone for good.
  // Cost: no driver call.
  void release_suspended(virtual_range range, std::uint64_t by) noexcept;

  // Unmaps the mappings in `range` that are not retiring, and gives up its suspended places, all or
  // none. Does nothing where there are none. Unlike a plan, it takes no host memory.
  // Requires: no device work uses them any more, and the caller owns their reservations.
  // Errors:   as retire(). Cost: one unmap per contiguous run.
  status unmap(virtual_range range) STILLMAP_EXCLUDES(mutex_);

  // Takes retiring mappings back from the start of `range` on, as far as they have `access` and
  // pages that are not used elsewhere (aliased, forked and spliced pages are not taken back).
  // `consumer` waits for the fence of the mappings; without it the host waits.
  // Returns the bytes taken back; `idle` receives their fence, for retire_again.
  // Cost: the wait; no other driver call.
  result<std::size_t> revive(virtual_range range, const std::vector<access_grant> &access,
                             std::optional<stream_ref> consumer, fence &idle);
  // Undoes revive(), or retires what no longer has an owner. Cannot fail, and takes no host memory.
  void retire_again(std::shared_ptr<address_block> block, virtual_range range, fence idle) noexcept
      STILLMAP_EXCLUDES(mutex_);

  // Unmaps the retiring mappings whose fence has passed; with `wait`, waits for all of them.
  // A mapping that fails to be unmapped stays retiring; the failure is a background error.
  // Returns the bytes unmapped. Takes no host memory.
  std::size_t collect(bool wait = false) STILLMAP_EXCLUDES(collect_mutex_, mutex_);
  // Waits for and unmaps the retiring mappings in `range`. Errors: the driver's.
  status collect_range(virtual_range range) STILLMAP_EXCLUDES(collect_mutex_, mutex_);

  // Appends at most `n` pages of retiring mappings to `out`. They may be mapped at a second address
  // at once; `consumer` waits for their fence.
  // Source: conformance 29.
  status steal_retiring(std::size_t n, std::size_t page_bytes,
                        const physical_properties &properties, stream_ref consumer,
                        std::vector<page_ptr> &out);

  // Runs `cb` before and after every change of backing on this device, while the result is alive.
  // Threads: callbacks run on the thread that makes the change, while the buffer concerned is
  //          locked. They may query the ledger and call the driver, and leave the thread's current
  //          context as it was. They must not use that buffer, change mappings, wait for a thread that
  //          does either, or throw.
  // Returns null where the host has no memory for it: `cb` is then never run.
  using subscription = std::shared_ptr<const backing_callback>;
  [[nodiscard]] subscription on_backing_change(backing_callback cb);

  // Queries. Threads: safe; each result is a consistent copy. Those that return a vector throw
  // std::bad_alloc where the host has no memory for it.
  address_space_stats stats() const STILLMAP_EXCLUDES(mutex_);
  std::vector<block_record> blocks() const;
  std::vector<mapping_record> mappings(virtual_range within) const;  // address order
  std::vector<mapping_record> mappings() const;
  std::shared_ptr<address_block> block_at(device_address at) const STILLMAP_EXCLUDES(mutex_);

  // Records of owners that use no plan: the cuMemAlloc fallback, page pools, physical_memory.
  // A record is prepared before the driver allocates, so that entering it cannot fail; one that was
  // removed can be entered again.
  using fallback_record = std::map<std::uint64_t, virtual_range>::node_type;
  static result<fallback_record> prepare_fallback();
  void add_fallback(virtual_range range, fallback_record prepared) noexcept;
  fallback_record remove_fallback(virtual_range range) noexcept;
  void physical_created(std::size_t bytes) STILLMAP_EXCLUDES(mutex_);
  void physical_released(std::size_t bytes) STILLMAP_EXCLUDES(mutex_);

  // Called by ~address_block: frees the addresses.
  void release_block(address_block &block) noexcept STILLMAP_EXCLUDES(mutex_);
  // Called by ~page_pool: removes mappings of its pages that the driver failed to unmap.
  void abandon(const page_owner &pool) noexcept STILLMAP_EXCLUDES(collect_mutex_, mutex_);

 private:
  friend class mapped_buffer;
  friend class remap;
  friend class removal;
  struct known_block {
    device_address end;
    std::weak_ptr<address_block> block;
  };
  using block_map = std::map<std::uint64_t, known_block>;  // by address
  using subscribers = std::vector<std::weak_ptr<const backing_callback>>;
  using access_ptr = std::shared_ptr<const std::vector<access_grant>>;

  bool is_exclusive_locked(const mapping_entry &e) const STILLMAP_REQUIRES(mutex_);
  void set_retiring_locked(const std::shared_ptr<address_block> &block, virtual_range range,
                           const fence &idle) STILLMAP_REQUIRES(mutex_);
  mapping_entry *retiring_in_locked(virtual_range range) STILLMAP_REQUIRES(mutex_);
  std::size_t gather_live_locked(virtual_range range, class removal &to) STILLMAP_REQUIRES(mutex_);
  std::unique_ptr<mapping_entry> take_locked(mapping_entry &e) STILLMAP_REQUIRES(mutex_);
  void drop_locked(mapping_entry &e) STILLMAP_REQUIRES(mutex_);
  void suspend_locked(mapping_entry &e, address_block &block, std::uint64_t by)
      STILLMAP_REQUIRES(mutex_);
  void forget_suspended_locked(virtual_range range) STILLMAP_REQUIRES(mutex_);
  void count_suspended_locked(address_block &block, int change) noexcept STILLMAP_REQUIRES(mutex_);
  std::size_t &bytes_without_page_locked(const mapping_entry &e) STILLMAP_REQUIRES(mutex_);
  std::size_t collect_run(class removal &run, bool wait, status &outcome)
      STILLMAP_REQUIRES(collect_mutex_) STILLMAP_EXCLUDES(mutex_);
  std::shared_ptr<address_block> block_at_locked(device_address at) const STILLMAP_REQUIRES(mutex_);
  virtual_range between_neighbours_locked(block_map::const_iterator block) const
      STILLMAP_REQUIRES(mutex_);
  bool records_any(virtual_range range) const STILLMAP_EXCLUDES(mutex_);
  void notify(backing_event::phase when, const address_block &block, virtual_range range) const
      STILLMAP_EXCLUDES(mutex_);
  result<virtual_range> find_addresses(std::size_t bytes, std::size_t least, std::size_t alignment,
                                       device_address hint)
      STILLMAP_EXCLUDES(reserve_mutex_, collect_mutex_, mutex_);
  std::size_t largest_free(std::size_t above, std::size_t alignment) const
      STILLMAP_REQUIRES(reserve_mutex_);

  device_state &device_;
  mutex reserve_mutex_;  // a trial of one thread holds the addresses that another one asks for
  mutex collect_mutex_;
  mutable mutex mutex_;
  block_map blocks_ STILLMAP_GUARDED_BY(mutex_);
  const std::unique_ptr<ledger> ledger_ STILLMAP_PT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, virtual_range> fallbacks_ STILLMAP_GUARDED_BY(mutex_);
  std::uint64_t next_retired_ STILLMAP_GUARDED_BY(mutex_) = 1;
  // Replaced, never changed.
  std::shared_ptr<const subscribers> callbacks_ STILLMAP_GUARDED_BY(mutex_);
  std::size_t suspended_ STILLMAP_GUARDED_BY(mutex_) = 0;  // entries
  address_space_stats stats_ STILLMAP_GUARDED_BY(mutex_);
  std::uint64_t next_block_ STILLMAP_GUARDED_BY(mutex_) = 1;
};

}  // namespace stillmap
