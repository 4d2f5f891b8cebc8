// Digests of chunks as an image stores them, made by the device from its own memory: how a snapshot
// knows what has changed without reading it. docs/design.md#snapshots. Internal.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stillmap/image/digest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// The digests of `chunks`, by a kernel on a few streams.
// Requires: chunks of at least 16 blocks of 4,096 bytes, whole ones, which the device may read;
//           nothing writes to them meanwhile.
// Errors: not_supported (the device cannot run the kernel, the driver has no modules; a chunk is
// too
//         small); the driver's.
// Memory: 32 bytes a chunk and a few MiB of the device's, for as long as it takes.
// Cost:   one module, and a launch for each stream.
result<std::vector<image::digest>> chunk_digests(const device &d,
                                                 std::span<const virtual_range> chunks);

}  // namespace stillmap::snapshot
