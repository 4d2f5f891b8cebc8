// Removes old images of a folder, and none that another one needs.
// docs/snapshots.md#images-that-others-build-on
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/folder.h"

namespace stillmap::image {

struct prune_options {
  std::uint64_t keep = 1;  // the newest images and sets that stay; at least 1
  bool dry_run = false;    // removes nothing
  checkpoint::file_system *files = &checkpoint::file_system::system();
};

// An image of the folder, or a set in a folder directly in it.
struct pruned_image {
  std::string name;
  std::uint64_t time = 0;        // of the contents, in ns since 1970 UTC
  std::uint64_t file_bytes = 0;  // of all images of a set
};

struct pruned {
  std::vector<pruned_image> removed;        // in the order of their removal
  std::vector<pruned_image> kept;           // because they are among the newest
  std::vector<pruned_image> needed;         // because one that stays builds on them
  std::vector<unreadable_name> unreadable;  // never removed
};

// Keeps the newest images and sets by the time of their contents, and all that they depend on, and
// removes the others: children before their parents. Links, images in other folders that the folder
// has beside sets, and images of a set that the folder itself is are never removed, nor what they
// depend on.
// Ensures: whenever it stops, every image that is left has the parents that it had in the folder.
// Errors:  invalid_argument (keep is 0), busy (a set is being written: its folder is locked), errors
//          of system calls. What was removed before stays removed.
// Threads: safe. An image whose parent goes while it is written is not published (write()).
// Cost:    as list_folder(), and one more read and one unlink for each image that is removed.
result<pruned> prune_folder(const std::string &folder, const prune_options &options = {});

}  // namespace stillmap::image
