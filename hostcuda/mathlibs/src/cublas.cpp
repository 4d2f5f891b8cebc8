// libcublas: every function computes on device memory, so all succeed and do nothing.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 15, stand_in::not_initialized = 1;  // cublasStatus_t

using stand_in::handle;

STAND_IN int cublasCreate_v2(void **out) {
  return stand_in::create<handle>(out);
}
STAND_IN int cublasDestroy_v2(void *h) {
  return stand_in::destroy<handle>(h);
}
STAND_IN int cublasSetMathMode(handle *h, int mode) {
  h->mode = mode;
  return 0;
}
STAND_IN int cublasGetMathMode(const handle *h, int *mode) {
  *mode = h->mode;
  return 0;
}
// PyTorch changes the mode for one call and restores it, so one of them is enough.
STAND_IN int cublasGetPointerMode_v2(const handle *, int *mode) {
  *mode = 0;
  return 0;
}

#include "hostcuda/mathlibs/src/cublas_names.h"
