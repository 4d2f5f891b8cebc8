// The contents of a quota's file. Internal. docs/sharing.md#the-file
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stillmap/allocators/quota_types.h"

namespace stillmap {

struct quota_header {
  std::uint64_t magic = 0;  // 0: new, or its creator died before it finished
  std::uint64_t limit = 0;  // bytes
  std::uint64_t used = 0;   // slots that have ever been taken: none behind them is read
  std::uint64_t revision = 0;
  std::uint64_t last_ticket = 0;
  std::uint64_t device_bytes = 0;  // 0: no participant has measured
  std::uint64_t outside = 0;       // as measured last
  std::uint64_t events = 0;        // ever written
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
  std::uint64_t until = 0;      // nanoseconds of the steady clock, which all processes share
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

// All but `holding` is written under the ledger's lock.
struct quota_slot {
  quota_holding holding;
  quota_wait wait;
  std::uint64_t minimum = 0, maximum = UINT64_MAX;
  std::int32_t priority = 0;
  std::uint8_t offers = 0;  // a bit for each reclaim_kind
  std::uint8_t listens = 0;
  std::uint16_t unused = 0;
  quota_ask ask;
  quota_answer answer;
  std::uint64_t later = 0;  // the number of an ask that is open: what is asked for is in use

  bool is_taken() const { return holding.process != 0; }
  std::uint64_t reserved() const { return holding.reserved; }
  quota_terms terms() const { return {minimum, maximum, priority}; }
};
static_assert(sizeof(quota_slot) == 128);

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
  static constexpr std::uint64_t magic = 0x33544f55514d5453;  // "STMQUOT3"
  quota_header header;
  std::array<quota_slot, max_slots> slots;

  std::span<quota_slot> used() { return std::span(slots).first(header.used); }
  std::span<const quota_slot> used() const { return std::span(slots).first(header.used); }
  // Of all participants. Bytes.
  std::uint64_t held() const {
    return sum([](const quota_slot &s) { return s.reserved(); });
  }
  std::uint64_t minima() const {
    return sum([](const quota_slot &s) { return s.minimum; });
  }
  template <class BytesOf>
  std::uint64_t sum(BytesOf bytes_of) const {
    std::uint64_t out = 0;
    for (const quota_slot &s : used()) out += s.is_taken() ? bytes_of(s) : 0;
    return out;
  }
};

}  // namespace stillmap
