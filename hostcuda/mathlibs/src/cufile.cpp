// libcufile: direct storage. All is refused: there is no device to read to.
#include "hostcuda/mathlibs/src/stand_in.h"

const int stand_in::not_supported = 5002, stand_in::not_initialized = 5001;  // CUfileOpError

#include "hostcuda/mathlibs/src/cufile_names.h"
