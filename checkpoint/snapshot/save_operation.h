// One save, in steps: describe the memory, then write the image. For jobs whose processes agree after each
// step, as mpi::save does; snapshot::save() takes them all.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

// Threads: externally synchronised.
class save_operation {
 public:
  // Reads the layout of the memory from the ledger.
  // Requires: the memory is idle.
  // Errors:   those of checkpoint::describe; busy (one of the tags is being suspended or sent),
  //           invalid_argument (a note has the name of the one with the references).
  static result<save_operation> create(
      const device &d, std::span<const std::string> tags,
      const std::vector<image::manifest::note> &notes,
      checkpoint::published_memory_is published = checkpoint::published_memory_is::referred_to,
      const std::optional<std::vector<virtual_range>> &within = {});

  // Errors: as save(), after the memory was described.
  result<image::written> write(const std::string &path, const image::write_options &options);

 private:
  save_operation(const device &d, checkpoint::tag_lease lease, checkpoint::memory_layout l,
                 image::manifest m)
      : device_(d), lease_(std::move(lease)), layout_(std::move(l)), manifest_(std::move(m)) {}
  device device_;
  checkpoint::tag_lease lease_;  // nobody unmaps what is being read
  checkpoint::memory_layout layout_;
  image::manifest manifest_;
};

}  // namespace stillmap::snapshot
