// The chunks that go in one round of copying: known from the start, or found while others go
// already. Internal.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace stillmap::migration {

// Threads: any; all() once everybody is through.
class round {
 public:
  round() = default;
  // These, and no more.
  explicit round(std::vector<std::size_t> which) : all_(std::move(which)), complete_(true) {}

  // Whether anybody wants more.
  bool add(const std::vector<std::size_t> &found) {
    const std::lock_guard lock(mutex_);
    all_.insert(all_.end(), found.begin(), found.end());
    more_.notify_all();
    return !given_up_;
  }
  // Waits until at most so many are still to be taken; not where nobody has taken any, which is so
  // where there is no thread for it.
  void await_takers(std::size_t most) {
    std::unique_lock lock(mutex_);
    fewer_.wait(lock, [&] { return next_ == 0 || all_.size() - next_ <= most || given_up_; });
  }
  // There are no more.
  void complete() {
    const std::lock_guard lock(mutex_);
    complete_ = true;
    more_.notify_all();
  }
  // Something failed: who takes gets no more.
  void give_up() {
    const std::lock_guard lock(mutex_);
    complete_ = given_up_ = true;
    more_.notify_all();
    fewer_.notify_all();
  }

  // The next one for whoever asks. None: there are no more, or, unless it is to `wait`, not yet.
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
  std::size_t next_ = 0;  // of all_
  bool complete_ = false, given_up_ = false;
};

}  // namespace stillmap::migration
