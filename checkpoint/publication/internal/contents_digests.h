// Digests of the contents of published pages, computed on the device.
#pragma once

#include <span>

#include "stillmap/checkpoint/publication/manifest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::publication {

// Sets m.chunk_bytes, m.key and m.digests from what is mapped at the places of m.layout now. A device
// that cannot run the kernel leaves them empty.
// Requires: nothing writes to the memory.
// Errors:   not_supported (the device may not read a page), the driver's, the system's.
status compute_digests(const device &d, manifest &m);

// Compares what is mapped at the places of `l`, which has the pages of m.layout, with the digests.
// Errors: corrupt (value = the address that differs), not_supported (the manifest has no digests, or the
//         device cannot compute them), the driver's.
status check_digests(const device &d, const manifest &m, const checkpoint::memory_layout &l);

}  // namespace stillmap::publication
