// One restore, in steps. Any step can fail; destroying the operation undoes the earlier ones. For jobs
// whose processes agree after each step, as mpi::restore does; snapshot::restore() takes them all.
#pragma once

#include <optional>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/snapshot/layout_manifest.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// Threads: externally synchronised.
class restore_operation {
 public:
  // Selects the memory, and checks that the device could hold it. Changes nothing.
  // Errors: invalid_argument (no such tag), not_supported, out_of_memory.
  static result<restore_operation> create(const device &d, const image::reader &from,
                                          std::span<const std::string> tags,
                                          const restore_options &options);

  // The steps: reserve the addresses; create pages and read the contents into them; map the pages.
  // Errors: as restore().
  status reserve();
  status fetch(const restore_options &options);
  result<restored> finish() &&;

  std::uint64_t contents_bytes() const { return wanted_.layout.bytes(); }

 private:
  restore_operation(const device &d, const image::reader &from, selected_memory wanted,
                    bool relocate)
      : device_(d), from_(from), wanted_(std::move(wanted)), relocate_(relocate) {}
  device device_;
  image::reader from_;
  selected_memory wanted_;
  bool relocate_;
  std::optional<checkpoint::restored_memory> memory_;
  std::vector<page_ptr> pages_;
};

}  // namespace stillmap::snapshot
