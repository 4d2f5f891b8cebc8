// A growable buffer made of pages. The ledger records which page is mapped where; the buffer records
// which slots (page-sized parts of its range) are committed, forked or aliased.
#pragma once

#include <cstdint>
#include <vector>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/internal/buffer_impl.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

class mapped_buffer final : public buffer_impl {
 public:
  using access_ptr = std::shared_ptr<const std::vector<access_grant>>;
  mapped_buffer(stillmap::device d, buffer_options options, access_ptr access,
                std::shared_ptr<address_block> first);
  ~mapped_buffer() override;

  // Both without the lock, because a caller would wait while pages are mapped ahead. blocks_ and the number
  // of slots change only in operations of the buffer's user, which exclude each other and these
  // (growable_buffer, Threads); they change under the lock, because map_ahead() reads them.
  device_address address() const override STILLMAP_NO_THREAD_SAFETY_ANALYSIS {
    return blocks_.front()->range().begin;
  }
  std::size_t reserved() const override STILLMAP_NO_THREAD_SAFETY_ANALYSIS {
    return slots_.size() * page_;
  }
  std::size_t page_bytes() const override { return page_; }
  std::size_t mapped_bytes() const override;
  bool in_place() const override { return true; }
  std::uint64_t generation() const override;
  bool committed(std::size_t offset, std::size_t bytes) const override;

  status check_access(std::size_t offset, std::size_t bytes, access_mode wanted) const override;

  status reserve(std::size_t bytes, consumer_stream consumer) override;
  status shrink_to(std::size_t bytes, release_fence idle) override;
  status commit(std::size_t offset, std::size_t bytes, consumer_stream consumer) override;
  status decommit(std::size_t offset, std::size_t bytes, release_fence idle) override;
  status close(release_fence idle) override;
  result<std::unique_ptr<buffer_impl>> alias(std::size_t offset, std::size_t bytes,
                                             std::size_t times) override;
  result<std::unique_ptr<buffer_impl>> fork() override;
  status make_writable(std::size_t offset, std::size_t bytes, stream_ref stream) override;
  status splice(std::size_t offset, std::size_t bytes, buffer_impl &to, std::size_t to_offset,
                release_fence idle) override;
  void size_changed() override;

 private:
  enum slot_flag : std::uint8_t {
    live = 1,     // committed
    forked = 2,   // read-only until make_writable
    aliased = 4,  // another buffer maps the page, too, or did: check_shareable() finds out
  };
  struct slot_run {
    std::size_t first, count;
    std::size_t end() const { return first + count; }
    slot_run from(std::size_t slot) const { return {slot, end() - slot}; }
  };
  struct revived_range {
    std::shared_ptr<address_block> block;
    virtual_range range;
    fence idle;
  };

  virtual_range span(slot_run run) const STILLMAP_REQUIRES(mutex_) {
    return {address() + run.first * page_, run.count * page_};
  }
  slot_run next_run(slot_run within, bool committed) const STILLMAP_REQUIRES(mutex_);
  std::size_t committed_bytes(slot_run within) const STILLMAP_REQUIRES(mutex_);
  std::vector<slot_run> runs(slot_run within, bool committed) const STILLMAP_REQUIRES(mutex_);
  slot_run in_first_block(slot_run run) const STILLMAP_REQUIRES(mutex_);
  std::shared_ptr<address_block> block_of(std::size_t slot) const STILLMAP_REQUIRES(mutex_);
  void retire(slot_run run, const fence &idle) noexcept STILLMAP_REQUIRES(mutex_);
  status apply(remap_plan &&plan) STILLMAP_REQUIRES(mutex_);
  void forget_lost() STILLMAP_REQUIRES(mutex_);
  status check_range(std::size_t offset, std::size_t bytes, bool pages) const;
  status check_awake(slot_run run) const STILLMAP_REQUIRES(mutex_);
  status check_shareable(slot_run run, std::uint8_t forbidden) STILLMAP_REQUIRES(mutex_);
  status grow(std::size_t bytes, consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  status fill(slot_run run, consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  status fill(slot_run run, consumer_stream consumer, std::vector<revived_range> &revived)
      STILLMAP_REQUIRES(mutex_);
  status revive(slot_run run, consumer_stream consumer, std::vector<revived_range> &revived)
      STILLMAP_REQUIRES(mutex_);
  status map_fresh(const std::vector<slot_run> &missing, consumer_stream consumer)
      STILLMAP_REQUIRES(mutex_);
  status empty(slot_run run, release_fence idle) STILLMAP_REQUIRES(mutex_);
  void collect_passed() const STILLMAP_EXCLUDES(mutex_);
  status plan_fresh(remap_plan &plan, const std::vector<slot_run> &missing, device_address base,
                    consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  status check_memory(std::size_t pages) const;
  status outgrow(std::size_t bytes, consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  status relocate(std::shared_ptr<address_block> target, std::size_t bytes,
                  consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  void mark(slot_run run, bool committed) STILLMAP_REQUIRES(mutex_);
  status replace_released(slot_run run, consumer_stream consumer) STILLMAP_REQUIRES(mutex_);
  std::vector<page_ptr> pages_of(slot_run run) const STILLMAP_REQUIRES(mutex_);
  void keep_pool_of(const page_ptr &page) STILLMAP_REQUIRES(mutex_);
  access_ptr reading() const;
  status unshare(const std::vector<std::size_t> &slots, stream_ref stream)
      STILLMAP_REQUIRES(mutex_);
  void drop_scratch(std::shared_ptr<address_block> scratch, stream_ref stream);
  void map_ahead() STILLMAP_EXCLUDES(mutex_);
  address_space &space() const { return device_.space(); }

  const std::size_t page_;
  const access_ptr access_;  // of every mapping
  // Adjacent, in address order.
  std::vector<std::shared_ptr<address_block>> blocks_ STILLMAP_GUARDED_BY(mutex_);
  std::vector<std::uint8_t> slots_ STILLMAP_GUARDED_BY(mutex_);
  // Pools of pages from other buffers.
  std::vector<std::shared_ptr<page_pool>> guests_ STILLMAP_GUARDED_BY(mutex_);
  std::size_t committed_slots_ STILLMAP_GUARDED_BY(mutex_) = 0;
  // No slot from here on is committed.
  std::size_t committed_end_ STILLMAP_GUARDED_BY(mutex_) = 0;
  // Of blocks this buffer has left.
  std::uint64_t generation_before_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> ahead_due_{false};
};

// Bytes to reserve for one more buffer, where none are stated.
std::size_t default_reservation(const device &d);
result<std::unique_ptr<buffer_impl>> make_mapped_buffer(const device &d, buffer_options options);

}  // namespace stillmap
