// libcusparseLt: products with structured sparsity. All are refused.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 10, stand_in::not_initialized = 1;  // cusparseStatus_t

#include "hostcuda/mathlibs/src/cusparseLt_names.h"
