// Remembers where the requests of a loop went, by what was in use then, so that an iteration is served as
// the one before it was. Internal. docs/allocator_placement.md#the-memory-of-a-loop
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "stillmap/allocators/engine/extent.h"
#include "stillmap/allocators/engine/growth_pattern.h"

namespace stillmap {

// Two places are remembered for a request: that of the same size when the same addresses were in use, and
// that of the same size when as many bytes and blocks were live. If each request gets the first, the
// addresses of an iteration are those of the iteration before. The second leads there from another state,
// such as one in which a block that outlives an iteration lies elsewhere.
//
// A place names the one that was asked for next. So a loop at rest finds each by one comparison.
//
// Threads: externally synchronised. Without host memory less is remembered.
class loop_memory {
 public:
  struct place {
    std::uint64_t key = 0;    // 0: none
    std::uint64_t begin = 0;  // an address
    extent *at = nullptr;     // what was there last: a hint
    place *next = nullptr;    // the one that was asked for next
  };

  loop_memory() = default;
  loop_memory(const loop_memory &) = delete;

  // An extent is in use from now on, or is not any more.
  void add(extent &s) { in_use_ += s.hash = hash(s.begin, s.bytes); }
  void add_again(const extent &s) { in_use_ += s.hash; }
  void remove(const extent &s) { in_use_ -= s.hash; }

  // Where the request goes, if it is the one that came next the last time; 0: it is another.
  [[gnu::always_inline]] std::uint64_t expected(std::uint64_t bytes) const {
    return next_->key == key_of(bytes) ? next_->begin : 0;
  }
  // The request went there.
  void take_expected() { follow(next_); }

  // A search for a request. Then find() tells where the same was, if it is known: first with the same
  // addresses in use, then with the same amount.
  enum class by : std::uint8_t { addresses, amount };
  void begin_search(std::uint64_t bytes, std::uint64_t live_bytes, std::uint64_t live_blocks) {
    bytes_ = bytes;
    addresses_key_ = key_of(bytes);
    amount_key_ = growth_pattern::key_of(live_bytes, live_blocks, bytes) | 1;
  }
  const place *find(by what) const {
    if (filled_ == 0) return nullptr;
    const place &found = places_[slot_of(what == by::addresses ? addresses_key_ : amount_key_)];
    return found.key != 0 ? &found : nullptr;
  }
  // The request that was searched for last got this extent.
  void remember(extent &s) noexcept {
    if (s.bytes != bytes_ || (2 * filled_ + 2 >= places_.size() && !grow())) return;
    bytes_ = 0;
    put(amount_key_, s);
    place *const now = put(addresses_key_, s);
    last_->next = now;
    follow(now);
  }
  void forget_all() noexcept {
    places_ = std::vector<place>();
    filled_ = 0;
    bytes_ = 0;
    forget_order();
  }
  std::size_t host_bytes() const { return places_.capacity() * sizeof(place); }

 private:
  static constexpr std::size_t at_first = 1024, most = std::size_t{1} << 19;
  static constexpr std::uint64_t odd = 0x9E3779B97F4A7C15u;

  static std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
  }
  static std::uint64_t hash(std::uint64_t begin, std::uint64_t bytes) {
    return mix(begin * odd ^ bytes);
  }
  // The sum of hashes is as good as one of them. Never 0.
  std::uint64_t key_of(std::uint64_t bytes) const { return (in_use_ + bytes * odd) | 1; }
  void follow(place *now) {
    last_ = now;
    next_ = now->next != nullptr ? now->next : &nothing_;
  }
  // What came after what. Before the places move, or go.
  void forget_order() {
    last_ = next_ = &nothing_;
    nothing_.next = nullptr;
  }
  // Of the key, or the empty one for it. In a loop it is mostly the one that comes next, which is at hand.
  // Requires: there are places.
  std::size_t slot_of(std::uint64_t key) const {
    if (next_->key == key) return static_cast<std::size_t>(next_ - places_.data());
    std::size_t i = (key * odd >> 32) & (places_.size() - 1);
    while (places_[i].key != 0 && places_[i].key != key) i = (i + 1) & (places_.size() - 1);
    return i;
  }
  place *put(std::uint64_t key, extent &s) {
    place &p = places_[slot_of(key)];
    filled_ += p.key == 0 ? 1 : 0;
    p.key = key;
    p.begin = s.begin;
    p.at = &s;
    return &p;
  }
  // A program that asks for ever new requests begins anew now and then.
  bool grow() noexcept {
    if (places_.size() >= most) forget_all();
    try {
      std::vector<place> old(std::max(2 * places_.size(), at_first));
      old.swap(places_);
      forget_order();
      for (const place &p : old) {
        if (p.key != 0) places_[slot_of(p.key)] = {p.key, p.begin, p.at, nullptr};
      }
      return true;
    } catch (const std::bad_alloc &) {
      return false;
    }
  }

  std::uint64_t in_use_ = 0;  // the sum of the hashes of all extents in use
  place nothing_;
  place *last_ = &nothing_, *next_ = &nothing_;  // of the latest request, and what came next then
  std::uint64_t bytes_ = 0, addresses_key_ = 0, amount_key_ = 0;  // of the latest search
  std::vector<place> places_;                                     // at most half of them filled
  std::size_t filled_ = 0;
};

}  // namespace stillmap
