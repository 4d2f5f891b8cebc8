// Work queue of one round of copying: the chunks to send, known from the start or added while
// others are already being sent.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/mutex.h"

namespace stillmap::migration {

// Threads: safe; all() only after every thread has finished with the round.
class copy_round {
 public:
  copy_round() = default;
  // A complete round of these chunks.
  explicit copy_round(std::vector<std::size_t> chunks) : all_(std::move(chunks)), complete_(true) {}

  // Returns false after give_up(): nothing more needs to be added.
  bool add(const std::vector<std::size_t> &chunks) {
    const lock_guard lock(mutex_);
    all_.insert(all_.end(), chunks.begin(), chunks.end());
    more_.notify_all();
    return !given_up_;
  }
  // Waits until at most `limit` chunks are not taken yet. Does not wait if none has been taken:
  // there may be no thread that takes any.
  void await_takers(std::size_t limit) {
    unique_lock lock(mutex_);
    fewer_.wait(lock, [&]() STILLMAP_REQUIRES(mutex_) {
      return next_ == 0 || all_.size() - next_ <= limit || given_up_;
    });
  }
  // No chunk will be added after this.
  void complete() {
    const lock_guard lock(mutex_);
    complete_ = true;
    more_.notify_all();
  }
  // After a failure: no more chunks are handed out.
  void give_up() {
    const lock_guard lock(mutex_);
    complete_ = given_up_ = true;
    more_.notify_all();
    fewer_.notify_all();
  }

  // The next chunk. Nullopt: there are no more or, unless `wait`, none at the moment.
  std::optional<std::size_t> take(bool wait) {
    unique_lock lock(mutex_);
    if (wait) {
      more_.wait(lock,
                 [this]() STILLMAP_REQUIRES(mutex_) { return next_ < all_.size() || complete_; });
    }
    if (next_ == all_.size() || given_up_) return std::nullopt;
    fewer_.notify_all();
    return all_[next_++];
  }

  const std::vector<std::size_t> &all() const STILLMAP_NO_THREAD_SAFETY_ANALYSIS { return all_; }

 private:
  mutex mutex_;
  condition_variable more_, fewer_;
  std::vector<std::size_t> all_ STILLMAP_GUARDED_BY(mutex_);
  // Index into all_ of the next chunk to hand out.
  std::size_t next_ STILLMAP_GUARDED_BY(mutex_) = 0;
  bool complete_ STILLMAP_GUARDED_BY(mutex_) = false;
  bool given_up_ STILLMAP_GUARDED_BY(mutex_) = false;
};

}  // namespace stillmap::migration
