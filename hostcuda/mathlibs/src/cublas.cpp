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

// The names of cublasStatus_t, as its manual lists them.
STAND_IN const char *cublasGetStatusName(int status) {
  switch (status) {
    case 0:
      return "CUBLAS_STATUS_SUCCESS";
    case 1:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case 7:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case 8:
      return "CUBLAS_STATUS_ARCH_MISMATCH";
    case 11:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case 13:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case 14:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case 15:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
    case 16:
      return "CUBLAS_STATUS_LICENSE_ERROR";
    default:
      return "unknown cublasStatus_t";
  }
}
STAND_IN const char *cublasGetStatusString(int status) {
  return cublasGetStatusName(status);
}

#include "hostcuda/mathlibs/src/cublas_names.h"
