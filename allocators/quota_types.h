// Options, statistics and events of a shared quota: plain values. shared_quota.h
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/memory_quota.h"

namespace stillmap {

// What a participant may have. Bytes.
struct quota_terms {
  // Granted whatever others hold: nobody else can reserve it, and nobody asks for it back.
  std::uint64_t minimum = 0;
  std::uint64_t maximum = UINT64_MAX;
  // A participant is served before those of lower priority, and only cached memory is taken from those of
  // higher priority.
  std::int32_t priority = 0;
  bool operator==(const quota_terms &) const = default;
};

struct shared_quota_options {
  // Bytes that all participants may hold together. 0: that of the existing quota.
  std::uint64_t limit = 0;
  quota_terms terms{};
  // How long a request waits for memory of others. 0: it does not, and asks nobody.
  std::chrono::milliseconds timeout{10'000};
  // The device whose memory the quota divides: what others than participants use there (other processes,
  // contexts, the driver) counts as well, so that what is granted can be created. It is measured when memory
  // is short. Without a device only the limit counts.
  std::optional<stillmap::device> device{};
};

struct quota_participant {
  std::uint32_t process = 0;   // process id, in the participant's own PID namespace
  std::uint64_t reserved = 0;  // bytes
  quota_terms terms{};
  // What it can be asked for, by reclaim_kind; without a thread, only where it polls.
  std::array<bool, reclaim_kinds> offers{};
  bool listens = false;       // has a thread that answers at once
  std::uint64_t waiting = 0;  // bytes that it waits for; 0: it does not
};

// Of this participant, since it joined. A wait ends with a grant or with busy.
struct quota_wait_stats {
  std::uint64_t waits = 0, granted = 0, busy = 0;
  // Grants to later requests of higher priority before one of the waits ended: of the wait with most. At most 16.
  std::uint64_t most_overtaken = 0;
  std::chrono::nanoseconds total{0}, longest{0};
  // The latest waits that ended with a grant, unordered: at most 512.
  std::vector<std::chrono::nanoseconds> recent{};
  std::array<std::uint64_t, reclaim_kinds> asked_for{};  // times that it was asked, by kind
  std::array<std::uint64_t, reclaim_kinds> given{};  // bytes that it gave back for others, by kind
};

struct quota_stats {
  std::uint64_t limit = 0;     // bytes
  std::uint64_t reserved = 0;  // bytes, by all live participants
  std::uint64_t own = 0;       // bytes, by this participant
  // Bytes of the device, and those of them that others than participants used when memory was short last. 0: no
  // participant has named a device.
  std::uint64_t device_bytes = 0, outside = 0;
  std::uint64_t revision = 0;                     // of the limit and all terms
  std::vector<quota_participant> participants{};  // live ones, including this one
  quota_wait_stats waits{};
};

enum class quota_action : std::uint32_t {
  joined,
  left,      // ended, or has died as another found; bytes: that it still held, which are free now
  waits,     // bytes: that it waits for
  asked,     // `other` asks `process` for bytes
  answered,  // `process` gave `bytes` back for `other`
  granted,   // after a wait of `waited`
  busy,      // the wait ended without a grant
  limit_set,
  terms_set,
};
const char *name_of(quota_action a) noexcept;
const char *name_of(reclaim_kind k) noexcept;

// The latest decisions, of all participants.
struct quota_event {
  std::uint64_t number = 0;   // in order, without gaps but for what was overwritten
  std::uint64_t time_ns = 0;  // since 1970
  quota_action action{};
  std::uint32_t process = 0, other = 0;  // 0: none
  reclaim_kind kind{};                   // asked, answered
  std::uint64_t bytes = 0;
  std::chrono::microseconds waited{0};
};

// What a look at a quota from outside finds.
struct quota_observation {
  quota_stats stats{};
  std::vector<quota_event> events{};  // the latest 512 at most, oldest first
};

// What becomes of a changed limit or changed terms.
enum class quota_change : std::uint8_t {
  applied,
  deferred,  // in force for all that is granted from now on; more is held now, until it is given back
};

}  // namespace stillmap
