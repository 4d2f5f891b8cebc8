// Maps a stream to the arena that serves it: a hash table that is changed in place. Lookups take no
// lock. Internal.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "stillmap/vmm/stream.h"

namespace stillmap {

class arena;

// Threads: lookups are safe; changes are externally synchronised. A lookup beside a change may miss
// a stream, and may return the arena of another one: check arena::stream under the arena's lock.
class stream_directory {
 public:
  stream_directory() { publish(2); }

  arena *of(stream_ref s) const {
    const std::uintptr_t now = now_.load(std::memory_order_acquire);
    const slot *const slots = reinterpret_cast<const slot *>(now & ~log_mask);
    const std::size_t mask = (std::size_t{1} << (now & log_mask)) - 1;
    const std::uintptr_t key = key_of(s);
    for (std::size_t i = hash(key) & mask;; i = (i + 1) & mask) {
      const slot &at = slots[i];
      const std::uintptr_t there = at.key.load(std::memory_order_acquire);
      if (there == key) [[likely]]
        return at.serves.load(std::memory_order_acquire);
      if (there == unused) return nullptr;
    }
  }

  // Afterwards an arena can serve one more stream. May run out of host memory, and then changes
  // nothing.
  void expect() {
    if (const table &now = all_.back(); 2 * (now.used + 1) > now.mask) rebuild();
  }

  // From now on `a` serves `s`; nullptr: no arena does. Requires: expect(), for a stream that no arena
  // serves.
  void serve(stream_ref s, arena *a) noexcept {
    table &now = all_.back();
    const std::uintptr_t key = key_of(s);
    slot *free = nullptr;
    for (std::size_t i = hash(key) & now.mask;; i = (i + 1) & now.mask) {
      slot &at = now.at(i);
      const std::uintptr_t there = at.key.load(std::memory_order_relaxed);
      if (there == key) {
        if (a == nullptr) at.key.store(removed, std::memory_order_release);
        if (a != nullptr) at.serves.store(a, std::memory_order_release);
        return;
      }
      if (free == nullptr && (there == removed || there == unused)) free = &at;
      if (there == unused) break;
    }
    if (a == nullptr) return;
    now.used += free->key.load(std::memory_order_relaxed) == unused;
    free->serves.store(a, std::memory_order_release);
    free->key.store(key, std::memory_order_release);
  }

 private:
  // No stream has these handles.
  static constexpr std::uintptr_t unused = ~std::uintptr_t{0}, removed = ~std::uintptr_t{1};
  // Aligned, so that the low bits of a table's address have room for the logarithm of its size: a
  // lookup loads one word instead of two that depend on each other.
  static constexpr std::uintptr_t log_mask = 63;
  struct slot {
    std::atomic<std::uintptr_t> key{unused};
    std::atomic<arena *> serves{nullptr};
  };
  struct alignas(log_mask + 1) line {
    std::array<slot, 4> slots;
  };
  struct table {
    explicit table(unsigned log)
        : mask((std::size_t{1} << log) - 1), lines(std::make_unique<line[]>(mask / 4 + 1)) {}
    slot *slots() const { return lines[0].slots.data(); }  // lines have no padding
    slot &at(std::size_t i) const { return slots()[i]; }
    std::size_t mask;
    std::size_t used = 0;  // slots that hold a stream, or held one
    std::unique_ptr<line[]> lines;
  };

  static std::uintptr_t key_of(stream_ref s) { return reinterpret_cast<std::uintptr_t>(s.get()); }
  static std::size_t hash(std::uintptr_t key) {
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> 32);
  }
  // Readers may still use the old table. It is kept; the sizes double, so that all of them are as
  // large as the last.
  void publish(unsigned log) {
    const table &made = all_.emplace_back(log);
    now_.store(reinterpret_cast<std::uintptr_t>(made.slots()) | log, std::memory_order_release);
  }
  // Drops the slots of removed streams; doubles the table where few were.
  void rebuild() {
    struct entry {
      std::uintptr_t key;
      arena *serves;
    };
    table &old = all_.back();
    std::vector<entry> kept;
    kept.reserve(old.used);
    for (std::size_t i = 0; i <= old.mask; ++i) {
      const std::uintptr_t key = old.at(i).key.load(std::memory_order_relaxed);
      if (key == unused || key == removed) continue;
      kept.push_back({key, old.at(i).serves.load(std::memory_order_relaxed)});
    }
    if (4 * kept.size() > old.mask) {
      publish(static_cast<unsigned>(std::bit_width(old.mask)) + 1);
    } else {
      for (std::size_t i = 0; i <= old.mask; ++i) {
        old.at(i).key.store(unused, std::memory_order_release);
      }
      old.used = 0;
    }
    table &now = all_.back();
    for (const entry &e : kept) {
      std::size_t i = hash(e.key) & now.mask;
      while (now.at(i).key.load(std::memory_order_relaxed) != unused) i = (i + 1) & now.mask;
      now.at(i).serves.store(e.serves, std::memory_order_release);
      now.at(i).key.store(e.key, std::memory_order_release);
      ++now.used;
    }
  }

  std::atomic<std::uintptr_t> now_{0};  // the last table's slots, and the logarithm of its size
  std::deque<table> all_;
};

}  // namespace stillmap
