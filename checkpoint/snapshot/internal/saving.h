// Memory about to be saved: what of it is looked up, and how its contents are read. Internal.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/snapshot/internal/device_contents.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

class saving {
 public:
  // Asks the ledger. Requires: the memory is idle. Errors: of checkpoint::describe.
  static image::outcome<saving> create(const device &d, std::span<const std::string> tags,
                                       const std::vector<image::manifest::note> &notes);

  // Errors: as save(), after the memory was looked up.
  image::outcome<image::written> write(const std::string &path, const image::write_options &how);

 private:
  saving(const device &d, checkpoint::memory_layout l, image::manifest what)
      : device_(d), layout_(std::move(l)), what_(std::move(what)) {}
  device device_;
  checkpoint::memory_layout layout_;
  image::manifest what_;
};

}  // namespace stillmap::snapshot
