// What cuMemCreate is asked for, and whether this machine has it.
#pragma once

#include <sys/types.h>

#include <string>

#include "hostcuda/src/cuda_names.h"

namespace hostcuda {

// Where memory with these properties lives: a device ordinal or kHostLocation. An error when the
// machine cannot make such memory.
CUresult check_properties(const CUmemAllocationProp *prop, int *location);

// The file of a shareable allocation carries its properties, so that an importer can tell a file of
// ours and report the same properties: in its name and, where they are the usual ones, in its mode,
// which is read in a third of the time.
std::string share_name(const CUmemAllocationProp &prop);
bool parse_share_name(const std::string &name, CUmemAllocationProp *prop);
bool share_mode(const CUmemAllocationProp &prop, mode_t *mode);
bool parse_share_mode(mode_t mode, CUmemAllocationProp *prop);

}  // namespace hostcuda
