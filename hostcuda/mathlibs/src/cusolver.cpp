// libcusolver: handles only. Its operations report to the host what they found, so they are refused.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 9, stand_in::not_initialized = 1;  // cusolverStatus_t

STAND_IN int cusolverDnCreate(void **out) {
  return stand_in::create<stand_in::handle>(out);
}
STAND_IN int cusolverDnDestroy(void *h) {
  return stand_in::destroy<stand_in::handle>(h);
}
STAND_IN_SUCCEEDS(cusolverDnSetStream)

#include "hostcuda/mathlibs/src/cusolver_names.h"
