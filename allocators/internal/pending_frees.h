// Freed blocks that work queued on other streams still uses, in one queue for each of those streams.
// Pure bookkeeping: allocator_core records the events and queries them. Internal.
// docs/allocator.md#streams-and-locks
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "stillmap/vmm/stream.h"

namespace stillmap {

// The work queued on a stream until some moment. The counter of recorded events is read before its
// event is recorded, and increased afterwards: one event of a stream was recorded before another
// if its `recorded_by` is at most the other's `recorded_from`.
struct stream_use {
  stream_ref stream;
  fence idle{};
  bool recorded = false;  // false: no event could be recorded yet
  std::uint64_t recorded_from = 0, recorded_by = 0;
};

struct pending_block {
  std::uint64_t address = 0;
  std::vector<stream_use> uses;
};

// Threads: externally synchronised.
class pending_frees {
 public:
  void add(pending_block b) {
    outstanding_[b.address] = b.uses.size();
    for (stream_use &u : b.uses) {
      queues_[u.stream.get()].push_back({std::move(u), b.address});
    }
  }

  // Appends the addresses of the blocks whose uses have all passed to `freed`, and forgets them.
  // `has_passed(stream_use &)` records an event where there is none.
  // Cost: for a stream with n uses, has_passed is called at most log2(n) + 2 times in vain.
  template <class HasPassed>
  void collect(HasPassed has_passed, std::vector<std::uint64_t> &freed) {
    for (auto it = queues_.begin(); it != queues_.end();) {
      queue &q = it->second;
      const std::optional<std::uint64_t> horizon = passed_until(q, has_passed);
      while (horizon && !q.empty() &&
             (was_recorded_by(q.front(), *horizon) || has_passed(q.front().of))) {
        std::size_t &left = outstanding_[q.front().address];
        if (--left == 0) {
          outstanding_.erase(q.front().address);
          freed.push_back(q.front().address);
        }
        q.pop_front();
      }
      it = q.empty() ? queues_.erase(it) : std::next(it);
    }
  }

 private:
  struct entry {
    stream_use of;
    std::uint64_t address;
  };
  using queue = std::deque<entry>;

  static bool was_recorded_by(const entry &e, std::uint64_t horizon) {
    return e.of.recorded && e.of.recorded_by <= horizon;
  }

  // All events that were recorded by the returned value have passed; nullopt: none has. Usually all
  // have, or none.
  template <class HasPassed>
  static std::optional<std::uint64_t> passed_until(queue &q, HasPassed has_passed) {
    if (has_passed(q.back().of)) return q.back().of.recorded_from;
    if (q.size() == 1 || !has_passed(q.front().of)) return std::nullopt;
    std::size_t passed = 0, not_passed = q.size() - 1;
    while (not_passed - passed > 1) {
      const std::size_t middle = passed + (not_passed - passed) / 2;
      (has_passed(q[middle].of) ? passed : not_passed) = middle;
    }
    return q[passed].of.recorded_from;
  }

  std::unordered_map<stream_handle, queue> queues_;
  std::unordered_map<std::uint64_t, std::size_t> outstanding_;  // by address: uses not passed
};

}  // namespace stillmap
