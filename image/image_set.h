// The images of several devices at one moment: a folder that is a set once its file `set` is there.
// docs/image_format.md#sets
#pragma once

#include <string>
#include <vector>

#include "stillmap/image/reader.h"

namespace stillmap::image {

struct set_member {
  image_id image;
  std::uint64_t file_bytes = 0;
  sha256 root;
  bool operator==(const set_member &) const = default;
};

struct image_set {
  image_id set;
  std::vector<set_member> images;  // by their place in the set
  bool operator==(const image_set &) const = default;
};

// "device-3.smi": the name of an image in the folder of its set.
std::string name_in_set(std::uint32_t index);

// A random number for a set, or an image. Errors: the random source's.
outcome<image_id> make_id();

// Writes `folder`/set, whole or not at all. Requires: the images are written, with this set, their
// place and their number (write_options), under their names.
// Errors: invalid_argument (none, or more than most_images_in_set); std::errc::file_exists (not
//         replacing, and there is one); the system's.
done write_set(const std::string &folder, const image_set &what, bool replace = false,
               file_calls *calls = nullptr);

// Errors: corrupt; not_supported (a newer version); the system's, no_such_file_or_directory: no
// set.
outcome<image_set> read_set(const std::string &folder, file_calls *calls = nullptr);

// The set, and all of its images, each open: they are those that the set names, and say so too.
// Errors: of read_set and of reader::open.
outcome<std::vector<reader>> open_set(const std::string &folder, const open_options &options = {});

}  // namespace stillmap::image
