// Every call that may be asked for while something else goes on, with what it needs made before and
// what it makes given back after.
#pragma once

#include <vector>

#include "bench/costs/machine.h"

namespace stillmap::costs {

// What one call needs and makes. In the order that it is made; it goes in the opposite one.
struct stage {
  explicit stage(const machine &on) : m(on) {}
  stage(const stage &) = delete;
  stage &operator=(const stage &) = delete;
  ~stage();

  const machine &m;
  own_stream side;  // not the one where something goes on
  addresses range;
  physical pages;
  mapping there;
  physical again;  // a second handle of the pages
  plain_memory plain;
  device_address ordered;  // memory in the order of `side`, not freed yet
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
