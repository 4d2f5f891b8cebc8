// cuProfilerStart and cuProfilerStop. A program that is not profiled may call them too.
#include "hostcuda/src/entry/entry.h"

using namespace hostcuda;

HOSTCUDA_ENTRY(cuProfilerStart, 4000, needs_context, 0, (void), { return CUDA_SUCCESS; })
HOSTCUDA_ENTRY(cuProfilerStop, 4000, needs_context, 0, (void), { return CUDA_SUCCESS; })
