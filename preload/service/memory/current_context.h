// The context that is current on the calling thread.
#pragma once

#include "preload/functions/known_device.h"

namespace stillmap::preload {

struct current_place {
  int device = -1;   // -1: no context is current
  word context = 0;  // 0: what is allocated ends with none
};

int ask_for_device() noexcept;
// Cost: no driver call where the thread has the same context as at the last one.
inline int current_device() noexcept {
  const int known = known_device::get();
  return known >= 0 ? known : ask_for_device();
}
current_place current() noexcept;

}  // namespace stillmap::preload
