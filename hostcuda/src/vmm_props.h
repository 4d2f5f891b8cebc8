// What cuMemCreate is asked for, and whether this machine has it.
#pragma once

#include <string>

#include "cuda_names.h"

namespace hostcuda {

// Where memory with these properties lives: a device ordinal or kHostLocation. An error when the
// machine cannot make such memory.
CUresult check_properties(const CUmemAllocationProp *prop, int *location);

// The name of a shareable allocation's file carries its properties, so that an importer can tell a
// file of ours and report the same properties.
std::string share_name(const CUmemAllocationProp &prop);
bool parse_share_name(const std::string &name, CUmemAllocationProp *prop);

}  // namespace hostcuda
