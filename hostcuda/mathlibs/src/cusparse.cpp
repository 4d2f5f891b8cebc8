// libcusparse: handles only. Its operations ask for sizes and contents of results, so they are refused.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 10, stand_in::not_initialized = 1;  // cusparseStatus_t

STAND_IN int cusparseCreate(void **out) {
  return stand_in::create<stand_in::handle>(out);
}
STAND_IN int cusparseDestroy(void *h) {
  return stand_in::destroy<stand_in::handle>(h);
}
STAND_IN const char *cusparseGetErrorString(int) {
  return "error of hostcuda's stand-in of cuSPARSE";
}
STAND_IN_SUCCEEDS(cusparseSetPointerMode)
STAND_IN_SUCCEEDS(cusparseSetStream)

#include "hostcuda/mathlibs/src/cusparse_names.h"
