// A program that is linked to the driver.
#include "tests/preload/clients/memory_user.h"

int main() {
  driver_pointers d;
#define CLIENT_TAKE(f) d.f = &::f;
  CLIENT_FUNCTIONS(CLIENT_TAKE)
#undef CLIENT_TAKE
  return use_memory(d);
}
