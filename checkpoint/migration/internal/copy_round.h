// Work queue of one round of copying: the chunks to send, known from the start or added while
// others are already being sent.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace stillmap::migration {

// Threads: safe; all() only after every thread has finished with the round.
class copy_round {
 public:
  copy_round() = default;
  // A complete round of these chunks.
  explicit copy_round(std::vector<std::size_t> chunks) : all_(std::move(chunks)), complete_(true) {}

  // Returns false after give_up(): nothing more needs to be added.
  bool add(const std::vector<std::size_t> &chunks) {
    const std::lock_guard lock(mutex_);
    all_.insert(all_.end(), chunks.begin(), chunks.end());
    more_.notify_all();
    return !given_up_;
  }
  // Waits until at most `limit` chunks are not taken yet. Does not wait if none has been taken:
  // there may be no thread that takes any.
  void await_takers(std::size_t limit) {
    std::unique_lock lock(mutex_);
    fewer_.wait(lock, [&] { return next_ == 0 || all_.size() - next_ <= limit || given_up_; });
  }
  // No chunk will be added after this.
  void complete() {
    const std::lock_guard lock(mutex_);
    complete_ = true;
    more_.notify_all();
  }
  // After a failure: no more chunks are handed out.
  void give_up() {
    const std::lock_guard lock(mutex_);
    complete_ = given_up_ = true;
    more_.notify_all();
    fewer_.notify_all();
  }

  // The next chunk. Nullopt: there are no more or, unless `wait`, none at the moment.
  std::optional<std::size_t> take(bool wait) {
    std::unique_lock lock(mutex_);
    if (wait) more_.wait(lock, [this] { return next_ < all_.size() || complete_; });
    if (next_ == all_.size() || given_up_) return std::nullopt;
    fewer_.notify_all();
    return all_[next_++];
  }

  const std::vector<std::size_t> &all() const { return all_; }

 private:
  std::mutex mutex_;
  std::condition_variable more_, fewer_;
  std::vector<std::size_t> all_;
  std::size_t next_ = 0;  // index into all_ of the next chunk to hand out
  bool complete_ = false, given_up_ = false;
};

}  // namespace stillmap::migration
