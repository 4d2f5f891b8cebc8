// libcufft: plans without a work area.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 16, stand_in::not_initialized = 5;  // cufftResult

STAND_IN int cufftCreate(int *plan) {
  if (!stand_in::allowed()) return stand_in::not_initialized;
  *plan = 1;
  return 0;
}
STAND_IN int cufftXtMakePlanMany(int, int, long long *, long long *, long long, long long, int,
                                 long long *, long long, long long, int, long long,
                                 std::size_t *work_bytes, int) {
  *work_bytes = 0;
  return 0;
}

#include "hostcuda/mathlibs/src/cufft_names.h"
