// Reads the contents of an image into the pages of a device.
#pragma once

#include <atomic>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/snapshot/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// Reads, checks and copies every chunk of the selected pages. Page i is mapped at at[i], where the
// device can write. `writes` becomes true before the first byte is written.
// Ensures: no copy is in flight afterwards.
// Errors:  as restore().
status read_contents(const device &d, const image::reader &from, const selected_memory &wanted,
                     const std::vector<device_address> &at, const restore_options &options,
                     std::atomic<bool> *writes = nullptr);

}  // namespace stillmap::snapshot
