// The device memory that the program has: what the allocator holds for it, and what the driver serves. Both count
// against its limit, and are reserved in the quota that it takes part in. docs/program_memory.md#the-limit
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>

#include "preload/functions/abi.h"
#include "stillmap/allocators/device_share.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap::preload {

// Of one device. The allocator reserves in it what it holds.
class device_memory final : public memory_quota {
 public:
  static constexpr int most_devices = 64;
  // nullptr: there are not so many; or this is a forked child, which can use none.
  static device_memory *of(int ordinal) noexcept;

  // Takes part in the quota that was asked for, if any. Where that fails it is reported, and the program runs without.
  void join(const device &d) noexcept;

  // The program's, or the driver's own where that is less. Bytes.
  word limit() noexcept;

  // memory_quota. Errors: out_of_memory (value: bytes requested, limit: bytes left within the program's limit), and
  // those of the quota.
  status reserve(std::uint64_t bytes) override;
  status release(std::uint64_t bytes) override;
  status make_room(std::uint64_t bytes) override;
  void end_room() noexcept override;
  std::unique_ptr<reclaimer_registration> add_reclaimer(
      reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) override;
  result<std::uint64_t> retry_reclaim() override;

  // For memory that the driver serves. Where there is too little, the allocator gives up what it keeps, and then other
  // processes are asked.
  status reserve_served(word bytes) noexcept;
  void release_served(word bytes) noexcept;
  // Releases what the allocator keeps for later requests; false: it keeps nothing.
  bool give_up_cache() noexcept;

  // Of memory that the driver serves, and whose size is known.
  struct served_figures {
    word live = 0, live_peak = 0;  // bytes
    std::uint64_t allocations = 0, frees = 0, out_of_memory = 0;
  };
  served_figures served() const noexcept;

  // Of the quota: what it has for all, and what of that nobody has or may claim but this program.
  struct quota_room {
    word limit, free;
  };
  std::optional<quota_room> room_in_quota() noexcept;

 private:
  int ordinal() const noexcept;
  void join_if_first() noexcept;
  embedded_quota *share() const noexcept { return share_.load(std::memory_order_acquire); }

  static constexpr word unknown = 0;
  std::atomic<word> limit_{unknown};
  std::atomic<word> held_{0};
  std::atomic<embedded_quota *> share_{nullptr};  // never destroyed
  std::atomic<bool> joined_{false};
  mutex joining_;
  std::atomic<word> live_{0}, live_peak_{0};
  std::atomic<std::uint64_t> allocations_{0}, frees_{0}, out_of_memory_{0};
};

}  // namespace stillmap::preload
