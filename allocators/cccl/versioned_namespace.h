// The name of an inline namespace for each version of CCCL. Two libraries of one process may have been
// compiled with different ones: their inline functions, which call different functions of CCCL, must not
// take each other's place. Included after a header of CCCL, which defines CCCL_VERSION.
#pragma once

#define STILLMAP_CCCL_JOINED(version) cccl_##version
#define STILLMAP_CCCL_NAMED(version) STILLMAP_CCCL_JOINED(version)
#define STILLMAP_CCCL_NAMESPACE STILLMAP_CCCL_NAMED(CCCL_VERSION)
