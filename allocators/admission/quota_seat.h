// One participant's slot in a quota: what it has reserved. Internal. docs/sharing.md#the-file
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "stillmap/allocators/admission/quota_ledger.h"
#include "stillmap/allocators/admission/quota_rules.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {

// Threads: safe. In a forked child every call fails, and the destructor does nothing.
class quota_seat {
 public:
  explicit quota_seat(quota_ledger &l) : ledger_(l) {}
  // Frees the slot, and with it what is reserved.
  ~quota_seat();
  quota_seat(const quota_seat &) = delete;

  // Takes a free slot, in a transaction. Errors: busy (there is none), invalid_argument (the terms: the minimum exceeds the
  // maximum, or the minima of all exceed the limit).
  status take(quota_table &t, const quota_terms &terms) STILLMAP_REQUIRES(ledger_held);
  std::size_t slot() const { return slot_; }
  std::uint32_t process() const { return process_; }

  // What a room of the thread has left comes first, without a system call.
  status reserve(std::uint64_t bytes);
  // Waits for no other process.
  status release(std::uint64_t bytes);
  // While a thread gives memory back for others, what it releases is not for its own room.
  class outside_room {
   public:
    outside_room();
    ~outside_room();
    outside_room(const outside_room &) = delete;
  };
  // Ends the latest room of the thread: what is left of it goes back.
  void end_room() noexcept;

  // Errors: not_supported (in a forked child). Cost: no system call.
  status check_not_forked() const;
  // A transaction of the ledger in which the slot is still this participant's.
  template <class Act>
  status transact(Act &&act, quota_part part = quota_part::all) STILLMAP_EXCLUDES(ledger_held) {
    // Before the ledger is locked, which a thread of the parent may have held at the fork.
    STILLMAP_RETURN_IF_ERROR(check_not_forked());
    return ledger_.transact(
        [&](quota_table &t) STILLMAP_REQUIRES(ledger_held) -> status {
          const bool same = t.header.magic != 0 && slot_ < t.header.used;
          if (!same || t.shares[slot_].holding != own_) return quota_ledger::truncated();
          return act(t);
        },
        part);
  }

  // ---- within a transaction ----

  // What the rules say, after participants that died were removed, if that matters.
  result<quota_rules::decision> decide(quota_table &t, std::uint64_t bytes)
      STILLMAP_REQUIRES(ledger_held);
  // Reserves what was granted, and counts the waits that it came before. `room`: for the calling thread; it may
  // run out of host memory for that, and then changes nothing.
  status grant(quota_table &t, std::uint64_t bytes, const quota_rules::decision &d, bool room)
      STILLMAP_REQUIRES(ledger_held);
  std::uint64_t reserved() const STILLMAP_REQUIRES(ledger_held) { return own_.reserved; }

  // The error for a decision that is not granted.
  static status refusal(const quota_rules::decision &d, std::uint64_t bytes);

 private:
  struct room {
    std::thread::id thread;
    std::uint64_t bytes = 0, left = 0;
  };
  template <class Use>
  void each_room(Use use) STILLMAP_REQUIRES(ledger_held);
  std::uint64_t give_to_rooms(std::uint64_t bytes) STILLMAP_REQUIRES(ledger_held);
  status write(std::uint64_t reserved) STILLMAP_REQUIRES(ledger_held);

  quota_ledger &ledger_;
  std::size_t slot_ = 0;
  bool joined_ = false;
  std::uint32_t process_ = 0;
  quota_holding own_ STILLMAP_GUARDED_BY(ledger_held);  // as last written
  std::vector<room> rooms_ STILLMAP_GUARDED_BY(ledger_held);
  std::atomic<bool> has_rooms_ = false;  // of any thread: without one, no lock is taken to look
};

}  // namespace stillmap
