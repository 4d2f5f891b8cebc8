// The contexts that the program has made current: work may be queued in each.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>

#include "preload/functions/abi.h"

namespace stillmap::preload {

class contexts {
 public:
  static constexpr std::size_t most = 64;  // at a time

  // Cost: without a lock; one comparison where the program has one context.
  static void note(word context) noexcept;
  static void forget(word context) noexcept;
  // Whether there was more than one at any time.
  static bool several() noexcept { return several_.load(std::memory_order_acquire); }
  // Whether there were more than `most`, so that not all are known.
  static bool too_many() noexcept { return too_many_.load(std::memory_order_acquire); }
  // Calls visit(context) for each.
  template <class Visit>
  static void each(Visit visit) {
    for (const std::atomic<word> &place : all_) {
      if (const word context = place.load(std::memory_order_acquire)) visit(context);
    }
  }

 private:
  static std::array<std::atomic<word>, most> all_;  // 0: unused
  static std::atomic<word> first_;                  // 0: none yet
  static std::atomic<bool> several_, too_many_;
};

}  // namespace stillmap::preload
