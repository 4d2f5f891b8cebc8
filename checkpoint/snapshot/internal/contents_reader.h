// Contents of an image on their way to a device's pages. Internal.
#pragma once

#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/snapshot/internal/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// Reads, checks and copies every chunk of the pages that are wanted; pages[i] lies at at[i], where
// the device may write. Nothing is under way afterwards.
// Errors: as restore().
image::done fill(const device &d, const image::reader &from, const wanted_memory &what,
                 const std::vector<device_address> &at, const restore_options &how);

}  // namespace stillmap::snapshot
