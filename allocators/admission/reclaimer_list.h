// What this process can give back when others ask for memory. Internal. docs/sharing.md#giving-memory-back
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

// Threads: safe. No lock is held while a reclaimer is called.
class reclaimer_list : public std::enable_shared_from_this<reclaimer_list> {
 public:
  using function = std::function<std::uint64_t(std::uint64_t bytes)>;

  // The registration ends with what is returned. `changed` is called after that. May throw std::bad_alloc.
  std::unique_ptr<reclaimer_registration> add(reclaim_kind kind, function reclaim,
                                              std::function<void()> changed);
  // A bit for each kind that something here can give back.
  std::uint8_t offers() const;
  // Calls reclaimers of the kind, in the order of their registration, until they have released so many bytes.
  struct outcome {
    std::uint64_t released = 0;  // bytes
    bool later = false;          // one that could release more waits for a poll
  };
  outcome reclaim(reclaim_kind kind, std::uint64_t bytes) noexcept;

 private:
  struct entry {
    reclaim_kind kind{};
    function reclaim;
    std::vector<std::thread::id> callers;  // that are in it now; has room for one more
    bool removed = false;
  };
  class registration;
  void remove(const std::shared_ptr<entry> &e);

  mutable mutex mutex_;
  condition_variable returned_;
  std::vector<std::shared_ptr<entry>> entries_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap
