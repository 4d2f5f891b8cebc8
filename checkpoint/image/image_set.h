// The images of several devices at one moment: a folder that is a set once its file `set` is there.
// docs/image_format.md#sets
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"

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

// "device-3.9c0f...21.smi": the name of an image in the folder of its set. The set's number is in
// it, so that the images of a set to come lie beside those of the one that is there.
std::string name_in_set(std::uint32_t index, const image_id &set);

struct place_in_set {
  std::uint32_t index = 0;
  image_id set;
  bool operator==(const place_in_set &) const = default;
};
// The other way round; nothing: not such a name.
std::optional<place_in_set> place_of(std::string_view name);

// A random number for a set, or an image. Errors: the random source's.
outcome<image_id> make_id();

// Writes `folder`/set, whole or not at all. Requires: the images are written, with this set, their
// place and their number (write_options), under their names. set_writer does all of it.
// Errors: invalid_argument (none, or more than most_images_in_set); std::errc::file_exists (not
//         replacing, and there is one); the system's.
done write_set(const std::string &folder, const image_set &what, bool replace = false,
               file_calls *calls = nullptr);

// Errors: corrupt; not_supported (a newer version); the system's, no_such_file_or_directory: no
// set.
outcome<image_set> read_set(const std::string &folder, file_calls *calls = nullptr);

// The set, and all of its images, each open: they are those that the set names, and say so too.
// A set that is replaced meanwhile is the old one or the new one.
// Errors: of read_set and of reader::open.
outcome<std::vector<reader>> open_set(const std::string &folder, const open_options &options = {});

// Only one of its images, without a look at the others. Requires: index < set.images.size().
// Errors: of reader::open; corrupt (not the image that the set names).
outcome<reader> open_in_set(const std::string &folder, const image_set &set, std::uint32_t index,
                            const open_options &options = {});

// Whether an image with this parent needs an image of that set, the parent's parents included.
bool needs(const reader &parent, const image_set &set);

}  // namespace stillmap::image
