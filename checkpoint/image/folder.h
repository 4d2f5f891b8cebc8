// The images in a folder, and which of them build on which.
// docs/snapshots.md#images-that-others-build-on
#pragma once

#include <string>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

// A file *.smi in the folder, or in a folder directly in it.
struct folder_image {
  std::string name;  // "a.smi", "step-1/device-0.9c0f...21.smi"
  image::superblock superblock;
  bool is_link = false;  // the name is a symbolic link
};

// A folder directly in the folder that holds a set; "." is the folder itself.
struct folder_set {
  std::string name;
  image_set set;
};

// A file *.smi that is no image, is damaged, or cannot be read; a `set`, or a folder, likewise.
struct unreadable_name {
  std::string name;
  error why;
};

struct folder_contents {
  std::vector<folder_image> images;  // by name
  std::vector<folder_set> sets;      // by name
  std::vector<unreadable_name> unreadable;
};

// Reads the first block of each image, which needs no key and says what the parent is. Names that
// begin with a dot are left out, and so are folders behind symbolic links.
// Ensures: the lists are complete.
// Errors:  errors of system calls (the folder cannot be listed).
// Threads: safe.
// Cost:    one open and one read an image; the names of each folder are listed.
result<folder_contents> list_folder(
    const std::string &folder, checkpoint::file_system &files = checkpoint::file_system::system());
// The same of an open directory.
result<folder_contents> list_folder(int directory, checkpoint::file_system &files);

// Whether `child` names `parent` as its parent.
bool is_parent(const superblock &parent, const superblock &child);

}  // namespace stillmap::image
