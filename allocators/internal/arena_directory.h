// Maps a stream to the arena that serves it, and an address to the arena that owns it. Lookups take
// no lock: they read an immutable table. A change publishes a new table; old tables are kept until
// the end, because a reader may still use them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/allocators/internal/arena.h"
#include "stillmap/allocators/internal/chunk_directory.h"

namespace stillmap {

// Threads: lookups are safe; changes are externally synchronised.
class arena_directory {
 public:
  arena_directory() { publish({}); }

  arena *of_stream(stream_ref s) const {
    const copy &now = *now_.load(std::memory_order_acquire);
    for (std::size_t i = slot(s, now);; i = (i + 1) & (now.slots.size() - 1)) {
      arena *const serves = now.slots[i].serves.load(std::memory_order_acquire);
      if (serves == nullptr || now.slots[i].stream == s) return serves;
    }
  }

  arena *at(std::uint64_t address) const {
    const copy &now = *now_.load(std::memory_order_acquire);
    // Binary search for the last range that begins at or below the address.
    const place *found = now.places.data();
    std::size_t n = now.places.size();
    while (n > 1) {
      const std::size_t half = n / 2;
      found += found[half].begin <= address ? half : 0;
      n -= half;
    }
    if (n == 0 || address < found->begin || address >= found->end) return chunks_.at(address);
    return found->owner;
  }

  // From now on `a` serves `s`; nullptr: no arena does.
  void serve(stream_ref s, arena *a) {
    if (a != nullptr && of_stream(s) != nullptr) {  // in place: happens at every capture
      for (const entry &e : now_.load(std::memory_order_relaxed)->slots) {
        if (e.stream != s || e.serves.load(std::memory_order_relaxed) == nullptr) continue;
        e.serves.store(a, std::memory_order_release);
      }
      return;
    }
    copy next = *now_.load(std::memory_order_relaxed);
    std::vector<entry> all;
    for (const entry &e : next.slots) {
      if (e.serves.load(std::memory_order_relaxed) != nullptr && e.stream != s) all.push_back(e);
    }
    if (a != nullptr) all.push_back({s, a});
    next.slots.assign(std::bit_ceil(2 * all.size() + 2), {});
    for (const entry &e : all) {
      std::size_t i = slot(e.stream, next);
      while (next.slots[i].serves.load(std::memory_order_relaxed) != nullptr) {
        i = (i + 1) & (next.slots.size() - 1);
      }
      next.slots[i] = e;
    }
    publish(std::move(next));
  }

  void add(virtual_range range, arena *a) {
    copy next = *now_.load(std::memory_order_relaxed);
    next.places.push_back({range.begin.value(), range.end().value(), a});
    std::sort(next.places.begin(), next.places.end(),
              [](const place &x, const place &y) { return x.begin < y.begin; });
    publish(std::move(next));
  }

  // The same for a chunk. Remove it before the chunk is freed.
  void add_chunk(virtual_range range, arena *a) { chunks_.set(range, a); }
  void remove_chunk(virtual_range range) { chunks_.set(range, nullptr); }

 private:
  struct entry {
    entry() = default;
    entry(stream_ref s, arena *a) : stream(s), serves(a) {}
    entry(const entry &e) : stream(e.stream), serves(e.serves.load(std::memory_order_relaxed)) {}
    entry &operator=(const entry &e) {
      stream = e.stream;
      serves.store(e.serves.load(std::memory_order_relaxed), std::memory_order_relaxed);
      return *this;
    }
    stream_ref stream;
    mutable std::atomic<arena *> serves{nullptr};  // replaced in place by serve()
  };
  struct place {
    std::uint64_t begin, end;
    arena *owner;
  };
  struct copy {
    std::vector<entry> slots = std::vector<entry>(2);
    std::vector<place> places;  // ordered by address
  };

  static std::size_t slot(stream_ref s, const copy &in) {
    const auto value = reinterpret_cast<std::uintptr_t>(s.get());
    return static_cast<std::size_t>((value * 0x9E3779B97F4A7C15u) >> 32) & (in.slots.size() - 1);
  }
  void publish(copy next) {
    all_.push_back(std::make_unique<const copy>(std::move(next)));
    now_.store(all_.back().get(), std::memory_order_release);
  }

  std::atomic<const copy *> now_{nullptr};
  std::vector<std::unique_ptr<const copy>> all_;
  chunk_directory chunks_;
};

}  // namespace stillmap
