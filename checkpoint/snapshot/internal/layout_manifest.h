// A layout of memory as an image's manifest says it, and back. Internal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// Without notes.
image::manifest manifest_of(const device &d, const checkpoint::memory_layout &l);

// Memory to be restored, and where the contents of each of its pages are among the image's.
struct wanted_memory {
  checkpoint::memory_layout layout;
  std::vector<std::uint64_t> offsets;  // by page of the layout
};

// What has one of `tags`; none: all. Requires: the manifest was checked.
// Errors: invalid_argument (there is no such tag: value = which of them).
result<wanted_memory> wanted_of(const image::manifest &m, std::span<const std::string> tags);

}  // namespace stillmap::snapshot
