// A shared quota inside of a program that the library does not control: PyTorch, Python, one that nobody changed.
//
// What it adds to shared_quota:
// - When the program ends, no reclaimer is called any more: the driver, or the interpreter, may be gone, and the
//   quota's thread may still run then.
// - A reclaimer may drop the last reference. The quota then ends on a thread of its own, because the thread that
//   answers cannot wait for itself.
// - A reclaimer gets no room, and does not poll: it would wait for itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

// Threads, fork, errors: as shared_quota.
class embedded_quota final : public memory_quota {
 public:
  static result<std::shared_ptr<embedded_quota>> open(const std::string &name,
                                                      shared_quota_options options);
  ~embedded_quota() override;
  embedded_quota(const embedded_quota &) = delete;

  status reserve(std::uint64_t bytes) override { return shared_->reserve(bytes); }
  status release(std::uint64_t bytes) override { return shared_->release(bytes); }
  result<std::uint64_t> available(std::uint64_t bytes) override {
    return shared_->available(bytes);
  }
  result<std::uint64_t> retry_reclaim() override { return shared_->retry_reclaim(); }
  // Errors: as shared_quota::make_room; busy (called by a reclaimer).
  status make_room(std::uint64_t bytes) override;
  void end_room() noexcept override { shared_->end_room(); }
  std::unique_ptr<reclaimer_registration> add_reclaimer(
      reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) override;
  // Errors: as shared_quota::poll; busy (called by a reclaimer).
  result<std::uint64_t> poll();

  // What needs no more than that. Neither make_room() nor poll().
  shared_quota &shared() { return *shared_; }

  // From now on no reclaimer of this process is called. Waits until none runs, and no longer than that. Called at
  // exit(), and earlier where something ends earlier that reclaimers need.
  // Returns false where one still runs.
  static bool stop_reclaimers(std::chrono::milliseconds timeout) noexcept;
  // Reclaimers were stopped, and one still runs, perhaps for ever: what waits for it must not be ended.
  static bool is_stuck() noexcept;

 private:
  explicit embedded_quota(std::shared_ptr<shared_quota> shared) : shared_(std::move(shared)) {}

  std::shared_ptr<shared_quota> shared_;
};

}  // namespace stillmap
