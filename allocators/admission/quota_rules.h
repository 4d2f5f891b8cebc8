// Who gets memory, who waits, and who is asked: the decisions of a shared quota, as functions of its table.
// Internal. docs/sharing.md#the-rules
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/admission/quota_table.h"

namespace stillmap {

// Requires of all functions: participants that have died were removed.
class quota_rules {
 public:
  // Grants to later requests of higher priority after which a wait comes before them, too.
  static constexpr std::uint64_t max_overtaken = 16;

  // `now`: a quota_time. A wait whose time is over counts for nothing.
  quota_rules(const quota_table &t, std::uint64_t now)
      : table_(t), now_(now), anyone_waits_(t.header.waits_until > now) {}
  // The same at the time that it is, if that matters.
  explicit quota_rules(const quota_table &t)
      : quota_rules(t, t.header.waits_until == 0 ? 0 : quota_time()) {}

  // Errors: invalid_argument (the minimum exceeds the maximum).
  static status check(const quota_terms &terms);
  // What a participant is charged with for the others: what is kept free for it counts as held. Bytes.
  static std::uint64_t charged(const quota_share &s) { return std::max(s.reserved(), s.minimum); }

  // Bytes that all may hold: the limit, or what the device leaves.
  std::uint64_t capacity() const;

  enum class verdict : std::uint8_t {
    granted,
    wait,            // there is not enough, or others come first
    beyond_maximum,  // more than its terms allow
    beyond_limit,    // more than could ever be granted beside the minima of the others
  };
  struct decision {
    verdict what = verdict::granted;
    std::uint64_t missing = 0;  // wait: bytes to be given back first, for those before it, too
    std::uint64_t left = 0;     // bytes that would be granted at once; of the others: the limit
    bool anyone_waits = false;
  };
  decision decide(std::size_t participant, std::uint64_t bytes) const;
  // The most bytes that decide() would grant now.
  std::uint64_t available(std::size_t participant) const;

  // Whether the wait of `other` is served before `participant`, which waits as the table says, or asks only now.
  bool is_before(std::size_t other, std::size_t participant) const;
  bool waits(std::size_t i) const {
    const quota_wait &w = table_.exchanges[i].wait;
    return anyone_waits_ && w.ticket != 0 && w.until > now_;
  }

  // Whether the one that asked still waits for that. A damaged ask is nobody's.
  bool is_asking(const quota_ask &a) const {
    return a.by < table_.header.used && waits(a.by) &&
           table_.exchanges[a.by].wait.ticket == a.ticket;
  }

  // Whom `participant` may ask for memory of a kind, first those of lowest priority, of those the ones with most
  // above their minimum. May run out of host memory.
  struct target {
    std::size_t slot = 0;
    std::uint64_t above_minimum = 0;  // bytes
  };
  std::vector<target> targets(std::size_t participant, reclaim_kind kind) const;

 private:
  // Of the other participants. Bytes.
  struct others_sums {
    std::uint64_t held = 0, charged = 0, minima = 0;
  };
  others_sums sum_of_others(std::size_t participant) const;
  // What those that come before `participant` wait for, beyond what they are charged with. Bytes.
  std::uint64_t needed_before(std::size_t participant) const;

  const quota_table &table_;
  const std::uint64_t now_;
  const bool anyone_waits_;  // otherwise no exchange is looked at
};

}  // namespace stillmap
