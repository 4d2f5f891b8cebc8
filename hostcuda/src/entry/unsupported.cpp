// The driver functions that hostcuda does not provide. A program that is linked to them starts only
// if the library has their symbols.
#include "hostcuda/src/entry/entry.h"
#include "hostcuda/src/entry/unsupported_list.h"

HOSTCUDA_UNSUPPORTED_FUNCTIONS(HOSTCUDA_NOT_PROVIDED)
