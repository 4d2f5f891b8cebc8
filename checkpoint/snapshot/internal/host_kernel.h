// The kernel of chunk_digests.h as a host function, for hostcuda, which has no PTX interpreter.
// Internal.
#pragma once

#include "stillmap/vmm/driver.h"

namespace stillmap::snapshot {

inline constexpr const char *kernel_name = "stillmap_chunk_digests";

// On hostcuda, registers it; on any other driver, does nothing.
void offer_host_kernel(const driver &drv) noexcept;

}  // namespace stillmap::snapshot
