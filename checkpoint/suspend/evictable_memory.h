// Memory that its process lets go when other participants of a quota need it, and gets back when it uses it
// next, at the same addresses. docs/sharing.md#giving-memory-back
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap::checkpoint {

struct evictable_memory_options {
  // Where the contents are kept meanwhile.
  suspend_options suspension{};
  suspender_options suspender{};
};

// The memory of a tag is used only between enter() and leave(), as work that one step of a program queues. In between
// the quota may suspend the tag, on another thread.
// Threads: safe. Several threads may be in it at once.
class evictable_memory {
 public:
  // Requires: the memory of the tag is created under `quota`, so that its bytes return there.
  // Errors:   invalid_argument (no quota), not_supported (this quota asks nobody), those of suspender::create.
  static result<std::unique_ptr<evictable_memory>> create(const device &d, std::string tag,
                                                          std::shared_ptr<memory_quota> quota,
                                                          evictable_memory_options options = {});
  // Nothing is evicted from then on. Requires: nobody is in it. What is suspended is lost, as with a suspender: enter it
  // before.
  ~evictable_memory();
  evictable_memory(const evictable_memory &) = delete;
  evictable_memory &operator=(const evictable_memory &) = delete;

  // The memory may be used from now on. Where it was evicted, waits for room in the quota (memory_quota::make_room), and
  // resumes it.
  // Ensures: failure: it is not entered, and suspended as before.
  // Errors:  those of make_room and suspender::resume.
  // Cost:    no driver call where it was not evicted.
  status enter();
  // It may be evicted once everybody has left, and is at once where somebody asked meanwhile.
  // Requires: enter() succeeded. Work that was queued is waited for before an eviction.
  void leave() noexcept;

  struct figures {
    std::uint64_t evictions = 0, evicted_bytes = 0, resumes = 0;
    bool evicted = false;  // now
  };
  figures stats() const;

 private:
  class state;
  explicit evictable_memory(std::unique_ptr<state> s);
  std::unique_ptr<state> state_;
};

}  // namespace stillmap::checkpoint
