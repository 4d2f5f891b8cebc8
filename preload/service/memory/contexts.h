// The contexts that the program has made current: work may be queued in each.
#pragma once

#include <array>
#include <atomic>

#include "preload/functions/abi.h"

namespace stillmap::preload {

class contexts {
 public:
  // Cost: without a lock; one comparison where the program has one context.
  static void note(word context) noexcept;
  // Returns whether it was known.
  static bool forget(word context) noexcept;
  // Whether there was more than one at any time.
  static bool several() noexcept { return several_.load(std::memory_order_acquire); }
  // False: the host had no memory to note one.
  static bool all_known() noexcept { return !missed_.load(std::memory_order_acquire); }
  // Calls visit(context) for each.
  template <class Visit>
  static void each(Visit visit) {
    for (const places *p = &first_places_; p != nullptr;
         p = p->next.load(std::memory_order_acquire)) {
      for (const std::atomic<word> &place : p->all) {
        if (const word context = place.load(std::memory_order_acquire)) visit(context);
      }
    }
  }

 private:
  // Never freed: a program that had many contexts may have them again.
  struct places {
    std::array<std::atomic<word>, 63> all{};  // 0: unused
    std::atomic<places *> next{nullptr};
  };
  static places *more_behind(places &last) noexcept;

  static places first_places_;
  static std::atomic<word> first_;  // 0: none yet
  static std::atomic<bool> several_, missed_;
};

}  // namespace stillmap::preload
