// Answers those that ask this participant for memory: on a thread, or where the program polls. Internal.
// docs/sharing.md#giving-memory-back
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "stillmap/allocators/admission/quota_bell.h"
#include "stillmap/allocators/admission/quota_seat.h"
#include "stillmap/allocators/admission/reclaimer_list.h"

namespace stillmap {

// Threads: safe.
class quota_responder {
 public:
  quota_responder(quota_ledger &l, quota_seat &seat)
      : ledger_(l), seat_(seat), reclaimers_(std::make_shared<reclaimer_list>()) {}
  // Ends the thread.
  ~quota_responder();
  quota_responder(const quota_responder &) = delete;

  // May throw std::bad_alloc. `offers_changed`: called when there are others afterwards, and when the registration
  // ends.
  std::unique_ptr<reclaimer_registration> add(reclaim_kind kind, reclaimer_list::function reclaim,
                                              std::function<void()> offers_changed);
  // Tells the others what this participant can give back, and whether it listens.
  status publish();

  // Starts the thread, unless it runs. May run out of host memory.
  status start_thread();
  // Gives back what was asked for and is not answered yet. `safe_point`: also all of the task. Returns the bytes
  // released.
  result<std::uint64_t> answer(bool safe_point);

  struct figures {
    std::array<std::uint64_t, reclaim_kinds> asked_for{}, given{};
  };
  figures totals() const;

 private:
  std::unique_ptr<std::jthread> take_thread();
  void run(const std::stop_token &stop) noexcept;
  result<quota_ask> open_ask();
  reclaimer_list::outcome give(const quota_ask &asked);
  status leave_open(const quota_ask &asked);
  status close(const quota_ask &asked, std::uint64_t given);

  quota_ledger &ledger_;
  quota_seat &seat_;
  const std::shared_ptr<reclaimer_list> reclaimers_;
  mutable mutex mutex_;
  std::atomic<bool> answering_ = false;  // one answer at a time; nobody waits for it
  std::atomic<bool> stopping_ = false;
  figures totals_ STILLMAP_GUARDED_BY(mutex_);
  quota_bell bell_;
  // Behind a pointer: in a forked child, where there is no such thread to wait for, it is left alone.
  std::unique_ptr<std::jthread> thread_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap
