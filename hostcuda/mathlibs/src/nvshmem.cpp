// libnvshmem_host: memory shared by the processes of a job. All is refused.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 5, stand_in::not_initialized = 4;  // nvshmemx_status

#include "hostcuda/mathlibs/src/nvshmem_names.h"
