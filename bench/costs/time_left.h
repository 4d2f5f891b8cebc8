// Keeps the program to its time by fewer samples, but never fewer than `least`.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace stillmap::costs {

class time_left {
 public:
  using clock = std::chrono::steady_clock;

  time_left(double seconds, std::size_t least, std::size_t most)
      : until_(clock::now() +
               std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds))),
        least_(least),
        most_(most) {}

  // This part (0 to 1) of what is left now.
  time_left share(double part) const { return time_left(seconds() * part, least_, most_); }
  // With at most `n` samples, for slow calls.
  time_left at_most(std::size_t n) const {
    return time_left(seconds(), std::min(least_, n), std::min(most_, n));
  }

  double seconds() const {
    return std::max(0.0, std::chrono::duration<double>(until_ - clock::now()).count());
  }
  bool over() const { return clock::now() >= until_; }
  // Whether to take another sample after `done`.
  bool more(std::size_t done) const { return done < least_ || (done < most_ && !over()); }

 private:
  clock::time_point until_;
  std::size_t least_, most_;
};

}  // namespace stillmap::costs
