// The page groups of an arena: which of them have memory, and a worker that gives them memory and takes it back while
// the device works. The engine's thread only writes wishes, which takes no host memory and calls no driver. The worker,
// on the page pool's background thread, calls the driver.
// Lock order: mutex_ is held across no driver call. docs/kv_arena.md#the-worker
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::kv {

using group_index = std::uint32_t;

// Of all operations that need memory which is suspended: busy.
tl::unexpected<error> suspended_error() noexcept;

class group_store {
 public:
  struct options {
    std::size_t groups = 0;
    bool sharing = false;  // want_shared() is used
    std::shared_ptr<page_pool> pool{};
    bool trims_pool = false;  // the worker gives back what is free in the pool when it ends
    std::string tag{};
  };

  // Errors: those of the reservation, out_of_memory (of the host).
  static result<std::unique_ptr<group_store>> create(const stillmap::device &d, const layout &l,
                                                     options o);
  // Waits for the device's work and unmaps everything.
  ~group_store();

  const stillmap::device &device() const { return device_; }
  const std::shared_ptr<page_pool> &pool() const { return pool_; }
  const std::shared_ptr<address_block> &block() const { return block_; }
  std::size_t groups() const { return groups_; }
  device_address address(std::uint32_t range, std::size_t group) const {
    return block_->range().begin + (range * groups_ + group) * layout_.page_bytes();
  }

  // ---- wishes --------------------------------------------------------------------------------------

  // The group shall have memory of its own.
  void want(group_index g) STILLMAP_EXCLUDES(mutex_);
  // The group shall have the pages of `from`, too. Requires: it is resting(), and `from` is mapped(); that
  // may be given up at once. While groups share pages, nobody may write to them.
  void want_shared(group_index g, group_index from) STILLMAP_EXCLUDES(mutex_);
  // The group shall have no memory. The worker takes it when the device has done what is queued by then.
  void give_up(group_index g) STILLMAP_EXCLUDES(mutex_);

  // It has memory, and is not given up.
  bool mapped(group_index g) const;
  // Other groups that are not given up have its pages, too, or shall have them.
  bool shared(group_index g) const STILLMAP_EXCLUDES(mutex_);
  // It has no memory yet, and a wish.
  bool waiting(group_index g) const;
  // It has no memory, no wish, and is not being unmapped.
  bool resting(group_index g) const;
  // Groups that are mapped(). The second counts those that share pages once, by looking at all groups; it may throw
  // std::bad_alloc.
  std::size_t mapped_groups() const STILLMAP_EXCLUDES(mutex_);
  std::size_t distinct_groups() const STILLMAP_EXCLUDES(mutex_);

  // ---- the worker ----------------------------------------------------------------------------------

  // Refuses the stream that is another one in the worker's thread.
  // Errors: invalid_argument (the calling thread's default stream).
  static status check(stream_ref stream);
  // The worker does what is wished for now. What is given up is unmapped once `stream` has done what is queued on it.
  // Errors: those of page_pool::in_background, out_of_memory (of the host): the wishes stay.
  status start(stream_ref stream) STILLMAP_EXCLUDES(mutex_);
  // Waits for the worker. A group whose wish failed is resting().
  // Errors: what the worker met first since the last call: out_of_memory (value = bytes of the wishes, limit = bytes
  //         that there were for them), busy (suspended), the driver's.
  status finish() STILLMAP_EXCLUDES(mutex_);
  bool idle() const STILLMAP_EXCLUDES(mutex_);
  // finish() has nothing to wait for, and nothing to return.
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  bool suspended() const { return suspension_->any.load(std::memory_order_acquire); }

  // Waits for the worker and for the device's work, and does what is wished for. Returns the bytes that the pool gave
  // back meanwhile. Errors: the driver's, busy (suspended), out_of_memory (of the host). A wish that failed is reported
  // by finish().
  result<std::size_t> settle() STILLMAP_EXCLUDES(mutex_);
  // What is wished for gets the pages that are mapped at the same places of a range of this size that begins at `from`,
  // all of it or none. They stay mapped there.
  // Requires: idle(), and the device's work on `from` is done. Errors: invalid_argument (no whole pages are there), the
  //           driver's, busy (suspended), out_of_memory (of the host; the wishes stay).
  status adopt(device_address from) STILLMAP_EXCLUDES(mutex_);

 private:
  enum class state : std::uint8_t {
    none,
    queued,            // wished for
    mapping,           // the worker maps it
    mapping_unwanted,  // and it was given up meanwhile
    mapped,
    leaving,         // given up: mapped until the worker comes to it
    leaving_shared,  // the same, of shared pages: they are not taken back
    leaving_wanted,  // and it was wished for again
    unmapping,       // the worker unmaps it
    unmapping_wanted,
  };
  static constexpr group_index no_group = UINT32_MAX;

  struct suspension final : suspension_listener {
    void on_suspension(bool is) noexcept override { any.store(is, std::memory_order_release); }
    std::atomic<bool> any{false};
  };
  // What the worker does at a time. Groups are in order of address.
  struct round {
    stream_ref stream = stream_ref::legacy();
    const char *operation = "";                    // of its errors
    bool device_is_idle = false;                   // nothing is waited for
    std::optional<device_address> adopted_from{};  // `maps` get the pages that are there
    std::vector<group_index> shares, sources, unmaps, maps;
    std::vector<state> before;  // of `unmaps`
    // What has come of it.
    bool is_shared = false, is_unmapped = false;
    std::size_t mapped = 0;  // the first ones of `maps`
    bool empty() const { return shares.empty() && unmaps.empty() && maps.empty(); }
  };

  group_store(const stillmap::device &d, const layout &l, options o, std::shared_ptr<suspension> s,
              std::shared_ptr<address_block> block);

  void work() noexcept STILLMAP_EXCLUDES(mutex_);
  void perform_rounds() STILLMAP_EXCLUDES(mutex_);
  status queue_round_locked(bool with_unmaps, round like) STILLMAP_REQUIRES(mutex_);
  bool next_round_locked(round &r) STILLMAP_REQUIRES(mutex_);
  void perform(round &r) STILLMAP_EXCLUDES(mutex_);
  status collect_retiring(const std::vector<group_index> &groups) const;
  status share(const round &r) const;
  status unmap(const round &r) const;
  status map(round &r);
  status map_first(const round &r, std::size_t n);
  status map_adopted(const round &r);
  void keep_pool(const page_ptr &p);
  void publish_locked(const round &r) STILLMAP_REQUIRES(mutex_);
  void publish_wish_locked(group_index g, bool is_done, state when_unwanted)
      STILLMAP_REQUIRES(mutex_);
  void fail_locked(const error &e) STILLMAP_REQUIRES(mutex_);
  status wait_for_device() const;
  state state_of(group_index g) const { return states_[g].load(std::memory_order_acquire); }
  void set_locked(group_index g, state s) STILLMAP_REQUIRES(mutex_) {
    states_[g].store(s, std::memory_order_release);
  }
  void touch_locked(group_index g) STILLMAP_REQUIRES(mutex_);
  void join_locked(group_index g, group_index other) STILLMAP_REQUIRES(mutex_);
  void leave_locked(group_index g) STILLMAP_REQUIRES(mutex_);
  bool shared_locked(group_index g) const STILLMAP_REQUIRES(mutex_);

  const stillmap::device device_;
  const layout layout_;
  const std::size_t groups_;
  const std::shared_ptr<page_pool> pool_;
  const bool trims_pool_;
  const std::shared_ptr<suspension> suspension_;
  const std::shared_ptr<address_block> block_;
  // Pools of pages that were another pool's, kept because the ledger does not. Used by the worker alone.
  std::vector<std::shared_ptr<page_pool>> guests_;

  mutable mutex mutex_;
  condition_variable idle_;
  // Read without a lock, as a step asks for each group of each sequence. Written by set_locked() alone.
  std::vector<std::atomic<state>> states_;
  // Groups that share pages are in one ring. Empty where nothing is shared.
  std::vector<group_index> next_ STILLMAP_GUARDED_BY(mutex_), previous_ STILLMAP_GUARDED_BY(mutex_);
  std::vector<group_index> sources_ STILLMAP_GUARDED_BY(mutex_);  // no_group: pages of its own
  // Groups with something to do for the worker are among these.
  std::size_t first_ STILLMAP_GUARDED_BY(mutex_) = SIZE_MAX, end_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::size_t mapped_ STILLMAP_GUARDED_BY(mutex_) = 0;
  bool working_ STILLMAP_GUARDED_BY(mutex_) = false;
  std::deque<round> rounds_ STILLMAP_GUARDED_BY(mutex_);    // for the worker
  const char *operation_ STILLMAP_GUARDED_BY(mutex_) = "";  // of the latest round
  bool follow_up_ STILLMAP_GUARDED_BY(mutex_) = false;      // a wish came while it unmapped
  status failure_ STILLMAP_GUARDED_BY(mutex_);
  std::atomic<bool> settled_{true};
};

}  // namespace stillmap::kv
