// Checks the properties passed to cuMemCreate, and stores them in shareable files.
#pragma once

#include <sys/types.h>

#include <string>

#include "hostcuda/src/cuda_names.h"

namespace hostcuda {

// Sets *location to the location of memory with these properties: a device ordinal or
// kHostLocation. Returns an error if the machine does not support them.
CUresult check_properties(const CUmemAllocationProp *prop, int *location);

// Whether memory can be imported from a handle of this type: only from a descriptor.
CUresult check_import_type(CUmemAllocationHandleType type);

// The file of a shareable allocation stores the allocation's properties, so that an importer can
// recognise and report them: in its name and, for common properties, also in its mode, because
// reading the mode takes a third of the time.
std::string file_behind(int fd);  // the name of an open file; empty if unknown
std::string share_name(const CUmemAllocationProp &prop);
bool parse_share_name(const std::string &name, CUmemAllocationProp *prop);
bool share_mode(const CUmemAllocationProp &prop, mode_t *mode);
bool parse_share_mode(mode_t mode, CUmemAllocationProp *prop);

}  // namespace hostcuda
