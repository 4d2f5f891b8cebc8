// Every call that can be made while other work runs. What it needs is made before, and what it
// makes is given back after.
#pragma once

#include <vector>

#include "bench/costs/machine.h"

namespace stillmap::costs {

// What one call needs and makes, in the order of creation; destroyed in the opposite order.
struct stage {
  explicit stage(const machine &on) : m(on) {}
  stage(const stage &) = delete;
  stage &operator=(const stage &) = delete;
  ~stage();

  const machine &m;
  own_stream side;  // not the stream with the work
  addresses range;
  physical pages;
  mapping there;
  physical again;  // a second handle of the pages
  plain_memory plain;
  device_address ordered;  // allocated in the order of `side`, not freed yet
  pinned_memory pinned;
  int descriptor = -1;
};

struct staged_call {
  const char *name;
  bool vmm;  // needs it
  status (*prepare)(stage &);
  status (*act)(stage &);
};
const std::vector<staged_call> &staged_calls();

}  // namespace stillmap::costs
