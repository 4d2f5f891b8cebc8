// libcupti: profiling of GPUs. All is refused, so that a profiler records the host only.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 27, stand_in::not_initialized = 15;  // CUptiResult

#include "hostcuda/mathlibs/src/cupti_names.h"
