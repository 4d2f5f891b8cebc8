// Converts a memory layout to an image's manifest and back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// The manifest of a layout. Its only note has the references to published memory, if there are any.
image::manifest manifest_of(const device &d, const checkpoint::memory_layout &l);

// The notes of an image that are the application's.
std::vector<image::manifest::note> notes_of_application(const image::manifest &m);

// A part of an image to be restored, and the offset of each page's contents in the image.
struct selected_memory {
  checkpoint::memory_layout layout;
  std::vector<std::uint64_t> offsets;  // by page of the layout
};

// Selects the memory that has one of `tags`; without tags, all of it.
// Requires: the manifest has been checked.
// Errors:   invalid_argument (no memory has a tag: detail().found = the tag), corrupt (the note with the references is
//           no such note).
result<selected_memory> select_memory(const image::manifest &m, std::span<const std::string> tags);

}  // namespace stillmap::snapshot
