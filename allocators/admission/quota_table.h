// The contents of a quota's file. Internal. docs/sharing.md#the-file
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stillmap/allocators/quota_types.h"

namespace stillmap {

// A time in the table: nanoseconds of the steady clock, which all processes share.
inline std::uint64_t quota_time(std::chrono::steady_clock::time_point t) {
  return static_cast<std::uint64_t>(std::chrono::nanoseconds(t.time_since_epoch()).count());
}
inline std::uint64_t quota_time() {
  return quota_time(std::chrono::steady_clock::now());
}

struct quota_header {
  std::uint64_t magic = 0;  // 0: new, or its creator died before it finished
  std::uint64_t limit = 0;  // bytes
  std::uint64_t used = 0;   // slots that have ever been taken: none behind them is read
  std::uint64_t revision = 0;
  std::uint64_t last_ticket = 0;
  std::uint64_t device_bytes = 0;  // 0: no participant has measured
  std::uint64_t outside = 0;       // as measured last
  std::uint64_t events = 0;        // ever written
  std::uint64_t waits_until = 0;   // a quota_time: no wait lasts longer

  // False: nobody waits, and what is in the exchanges decides nothing.
  bool may_wait() const { return waits_until != 0 && waits_until > quota_time(); }
};

// What a participant holds. Written at once, so a participant that dies leaves the old state or the new
// one. The owner writes it without a lock: `check` tells a reader that it has read parts of both.
struct quota_holding {
  std::uint64_t reserved = 0;  // bytes
  std::uint32_t process = 0;   // 0: nobody's
  std::uint32_t check = 0;

  static quota_holding of(std::uint64_t reserved, std::uint32_t process) {
    return {reserved, process, check_of(reserved, process)};
  }
  bool is_whole() const { return check == check_of(reserved, process); }
  bool operator==(const quota_holding &) const = default;

 private:
  static std::uint32_t check_of(std::uint64_t reserved, std::uint32_t process) {
    return static_cast<std::uint32_t>((reserved * 0x9e3779b97f4a7c15 + process) >> 32) ^ process;
  }
};

// What a participant waits for.
struct quota_wait {
  std::uint64_t ticket = 0;  // the lower, the earlier; 0: it waits for nothing
  std::uint64_t bytes = 0;
  std::uint64_t until = 0;      // a quota_time
  std::uint64_t overtaken = 0;  // grants to others that came later, for their priority
};

// The request of another for memory.
struct quota_ask {
  std::uint64_t number = 0;  // of the asks of this participant; 0: there was none
  std::uint64_t bytes = 0;
  std::uint64_t ticket = 0;  // of the wait that it is for
  std::uint32_t by = 0;      // the slot that waits
  reclaim_kind kind{};
};

struct quota_answer {
  std::uint64_t number = 0;  // of the ask
  std::uint64_t given = 0;   // bytes
};

// A participant's slot has two parts, each in an array of its own. Their size divides a page: a process that is
// killed while it writes may have written one page and not the next.

// What decides a grant while nobody waits. Every reservation reads those of all participants, so it is small. All
// but `holding` is written under the ledger's lock.
struct alignas(32) quota_share {
  quota_holding holding;
  std::uint64_t minimum = 0, maximum = UINT64_MAX;

  bool is_taken() const { return holding.process != 0; }
  std::uint64_t reserved() const { return holding.reserved; }
};
static_assert(sizeof(quota_share) == 32);

// What a participant waits for, is asked for and answers. Written under the ledger's lock.
struct alignas(128) quota_exchange {
  quota_wait wait{};
  quota_ask ask{};
  quota_answer answer{};
  std::uint64_t later = 0;  // the number of an ask that is open: what is asked for is in use
  std::int32_t priority = 0;
  std::uint8_t offers = 0;  // a bit for each reclaim_kind
  std::uint8_t listens = 0;
};
static_assert(sizeof(quota_exchange) == 128);

struct quota_record {  // of a quota_event
  std::uint64_t number = 0, time = 0, bytes = 0;
  std::uint64_t waited = 0;  // microseconds
  quota_action action{};
  std::uint32_t process = 0, other = 0;
  std::uint32_t kind = 0;
};
static_assert(sizeof(quota_record) == 48);

struct quota_table {
  static constexpr std::size_t max_slots = 1000, max_events = 512;
  static constexpr std::uint64_t magic = 0x34544f55514d5453;  // "STMQUOT4"
  quota_header header;
  std::array<quota_share, max_slots> shares;
  std::array<quota_exchange, max_slots> exchanges;

  std::span<const quota_share> used() const { return std::span(shares).first(header.used); }
  quota_terms terms(std::size_t i) const {
    return {shares[i].minimum, shares[i].maximum, exchanges[i].priority};
  }
  // When the last of the waits is over; 0: nobody waits.
  std::uint64_t last_wait_ends() const {
    std::uint64_t out = 0;
    for (std::size_t i = 0; i < header.used; ++i) {
      if (exchanges[i].wait.ticket != 0) out = std::max(out, exchanges[i].wait.until);
    }
    return out;
  }
  // Of all participants. Bytes.
  std::uint64_t held() const {
    return sum([](const quota_share &s) { return s.reserved(); });
  }
  std::uint64_t minima() const {
    return sum([](const quota_share &s) { return s.minimum; });
  }
  template <class BytesOf>
  std::uint64_t sum(BytesOf bytes_of) const {
    std::uint64_t out = 0;
    for (const quota_share &s : used()) out += s.is_taken() ? bytes_of(s) : 0;
    return out;
  }
};

}  // namespace stillmap
