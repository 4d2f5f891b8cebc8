// A library that looks the driver's functions up, for a program that opens it.
#include "tests/preload/clients/lookups.h"

extern "C" __attribute__((visibility("default"))) int use_found_in_library(const char *way,
                                                                           const char *folder) {
  return use_found(way, folder);
}
