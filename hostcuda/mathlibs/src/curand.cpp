// libcurand, which PyTorch is linked to and calls no function of. PyCUDA needs some to start.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 1, stand_in::not_initialized = 101;  // curandStatus_t

#include "hostcuda/mathlibs/src/curand_names.h"
