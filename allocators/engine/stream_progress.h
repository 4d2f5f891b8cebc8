// How far streams have come: a stream passes its events in order, so one that has passed tells of all
// that were recorded before, in whichever arena their blocks are. Pure bookkeeping. Internal.
// docs/allocator_streams.md#a-block-and-its-streams
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "stillmap/allocators/engine/pending_frees.h"

namespace stillmap {

// Remembers some streams; what it does not know is asked of the driver. Needs no host memory.
// Threads: externally synchronised.
class stream_progress {
 public:
  // Whether the use is known to have passed.
  bool covers(const stream_use &u) const {
    const slot &s = slots_[slot_of(u.stream)];
    return u.recorded && u.forgotten == 0 && s.stream == u.stream && u.recorded_by <= s.passed;
  }
  // The use has passed.
  void note(const stream_use &u) {
    if (u.forgotten != 0) return;
    slot &s = slots_[slot_of(u.stream)];
    const std::uint64_t before = s.stream == u.stream ? s.passed : 0;
    s = {u.stream, std::max(before, u.recorded_from)};
  }

 private:
  struct slot {
    stream_ref stream;
    std::uint64_t passed = 0;  // what was recorded on it by then has passed
  };
  static constexpr unsigned log_slots = 6;
  static std::size_t slot_of(stream_ref s) {
    const auto handle = reinterpret_cast<std::uintptr_t>(s.get());
    return static_cast<std::size_t>((handle * 0x9E3779B97F4A7C15) >> (64 - log_slots));
  }
  std::array<slot, std::size_t{1} << log_slots> slots_{};
};

}  // namespace stillmap
