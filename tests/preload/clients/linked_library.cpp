// A library that is linked to the driver, for programs that are not.
#include "tests/preload/clients/memory_user.h"

extern "C" __attribute__((visibility("default"))) int use_linked() {
  driver_pointers d;
#define CLIENT_TAKE(f) d.f = &::f;
  CLIENT_FUNCTIONS(CLIENT_TAKE)
#undef CLIENT_TAKE
  return use_memory(d);
}
