// The context that is current on the calling thread.
#pragma once

#include "preload/functions/abi.h"

namespace stillmap::preload {

struct current_place {
  int device = -1;   // -1: no context is current
  word context = 0;  // 0: what is allocated ends with none
};

int current_device() noexcept;
current_place current() noexcept;

}  // namespace stillmap::preload
