// An image on its way to a device, a step at a time: each step can fail, and letting go of this
// undoes those before. Internal.
#pragma once

#include <optional>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/snapshot/internal/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

class restoring {
 public:
  // What is wanted of the image, and whether the device could hold it. Changes nothing.
  // Errors: invalid_argument (no such tag), not_supported, out_of_memory.
  static image::outcome<restoring> create(const device &d, const image::reader &from,
                                          std::span<const std::string> tags,
                                          const restore_options &how);

  // The addresses; then pages, with the contents in them; then the pages at the addresses.
  // Errors: as restore().
  image::done reserve();
  image::done fetch(const restore_options &how);
  image::outcome<restored> finish() &&;

  std::uint64_t contents_bytes() const { return what_.layout.bytes(); }

 private:
  restoring(const device &d, const image::reader &from, wanted_memory what, bool relocate)
      : device_(d), from_(from), what_(std::move(what)), relocate_(relocate) {}
  device device_;
  image::reader from_;
  wanted_memory what_;
  bool relocate_;
  std::optional<checkpoint::restored_memory> landing_;
  std::vector<page_ptr> pages_;
};

}  // namespace stillmap::snapshot
