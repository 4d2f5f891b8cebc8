// Freed blocks that work queued on other streams still uses, in one queue for each of those streams.
// Pure bookkeeping: stream_tracker records the events and queries them. Internal.
// docs/allocator_streams.md#a-block-and-its-streams
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stillmap/vmm/stream.h"

namespace stillmap {

// The work queued on a stream until some moment. The counter of recorded events is read before its
// event is recorded, and increased afterwards: one event of a stream was recorded before another
// if its `recorded_by` is at most the other's `recorded_from`. stream_progress.h
struct stream_use {
  stream_ref stream;
  fence idle{};
  bool recorded = false;  // false: no event could be recorded yet
  std::uint64_t recorded_from = 0, recorded_by = 0;
  // Not 0: the stream was forgotten; those that were have different numbers. Its handle may be another's.
  std::uint64_t forgotten = 0;

  bool is_on(stream_ref s) const { return stream == s && forgotten == 0; }
  // Its stream, with all work behind `last_work`, is forgotten.
  void forget(std::uint64_t number, const fence &last_work) {
    idle = last_work;
    recorded = true;
    recorded_from = recorded_by = number;
    forgotten = number;
  }
};

// A block that other streams use, from the first record_use on: its free needs no host memory.
struct pending_block {
  std::uint64_t address = 0;
  std::vector<stream_use> uses;  // one for each stream; moved to the queues after the free
  bool freed = false;            // counted as freed; the memory waits
  std::size_t not_passed = 0;    // uses in the queues
  pending_block *next = nullptr;
};

// Freed blocks whose uses are in no queue yet, in the order of their frees. Needs no host memory.
// Threads: externally synchronised.
class pending_list {
 public:
  bool empty() const { return first_ == nullptr; }
  template <class Use>
  void each(Use use) {
    for (pending_block *b = first_; b != nullptr; b = b->next) use(*b);
  }
  pending_block &front() { return *first_; }
  void push_back(pending_block &b) {
    b.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &b;
    last_ = &b;
  }
  void pop_front() { first_ = first_->next; }
  void append(pending_list &other) {
    if (other.empty()) return;
    (first_ == nullptr ? first_ : last_->next) = other.first_;
    last_ = other.last_;
    other.first_ = nullptr;
  }

 private:
  pending_block *first_ = nullptr, *last_ = nullptr;
};

// Threads: externally synchronised.
class pending_frees {
 public:
  // Enters the uses of a freed block. False: the host has no memory for them, and nothing changed.
  // Requires: `b` lives until collect() passes it to `freed`.
  bool add(pending_block &b) noexcept {
    std::size_t entered = 0;
    try {
      for (; entered < b.uses.size(); ++entered) {
        queues_[key_of(b.uses[entered])].push_back({{}, &b});
      }
    } catch (const std::bad_alloc &) {
      take_back(b, entered);
      return false;
    }
    for (stream_use &u : b.uses) queues_.find(key_of(u))->second.back().of = std::move(u);
    b.not_passed = b.uses.size();
    return true;
  }

  // Calls `freed(pending_block &)` for the blocks whose uses have all passed, and forgets them.
  // `has_passed(stream_use &)` records an event where there is none. It is asked about the latest use of a
  // stream before earlier ones, which it knows to have passed then (stream_progress).
  // Cost: for a stream with n uses, has_passed is called at most log2(n) + 2 times in vain.
  template <class HasPassed, class Freed>
  void collect(HasPassed has_passed, Freed freed) {
    for (auto it = queues_.begin(); it != queues_.end();) {
      queue &q = it->second;
      if (q.empty()) {  // it stays, because making one costs more than many of these
        const bool ended = it->first.forgotten != 0;
        it = ended || queues_.size() > most_empty ? queues_.erase(it) : std::next(it);
        continue;
      }
      if (!find_last_passed(q, has_passed)) {
        ++it;
        continue;
      }
      while (!q.empty() && has_passed(q.front().of)) {
        pending_block &b = *q.front().block;
        q.pop_front();
        if (--b.not_passed == 0) freed(b);
      }
      ++it;
    }
  }

  bool has_uses_on(stream_ref s) const {
    const auto found = queues_.find({s.get(), 0});
    return found != queues_.end() && !found->second.empty();
  }
  // stream_use::forget for the uses on `s`. Needs no host memory.
  void forget(stream_ref s, std::uint64_t number, const fence &last_work) {
    auto found = queues_.extract({s.get(), 0});
    if (found.empty()) return;
    for (entry &e : found.mapped()) e.of.forget(number, last_work);
    found.key().forgotten = number;
    queues_.insert(std::move(found));
  }

 private:
  struct entry {
    stream_use of;
    pending_block *block;
  };
  // A forgotten stream has a queue of its own: a new stream with its handle passes its events earlier.
  struct key {
    stream_handle stream;
    std::uint64_t forgotten;
    bool operator==(const key &) const = default;
  };
  struct hash {
    std::size_t operator()(const key &k) const {
      return std::hash<stream_handle>()(k.stream) ^ static_cast<std::size_t>(k.forgotten);
    }
  };
  static key key_of(const stream_use &u) { return {u.stream.get(), u.forgotten}; }
  using queue = std::deque<entry>;
  static constexpr std::size_t most_empty = 32;  // queues

  // The first `entered` uses of `b` have an entry, the last in its queue.
  void take_back(const pending_block &b, std::size_t entered) {
    for (std::size_t i = 0; i < b.uses.size(); ++i) {
      const auto it = queues_.find(key_of(b.uses[i]));
      if (it == queues_.end()) continue;
      if (i < entered) it->second.pop_back();
    }
  }

  // Asks about the last use that has passed. False: none has. Usually all have, or none.
  template <class HasPassed>
  static bool find_last_passed(queue &q, HasPassed has_passed) {
    if (has_passed(q.back().of)) return true;
    if (q.size() == 1 || !has_passed(q.front().of)) return false;
    std::size_t passed = 0, not_passed = q.size() - 1;
    while (not_passed - passed > 1) {
      const std::size_t middle = passed + (not_passed - passed) / 2;
      (has_passed(q[middle].of) ? passed : not_passed) = middle;
    }
    return true;
  }

  std::unordered_map<key, queue, hash> queues_;
};

}  // namespace stillmap
