// A set: images of several devices taken at one moment, in a directory with a file `set`.
// docs/image_format.md#sets
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
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
  std::vector<set_member> images;  // by index
  bool operator==(const image_set &) const = default;
};

// "device-3.9c0f...21.smi": the file name of an image of a set. It contains the id of the set, so
// that the images of a new set can be written next to those of the old one.
std::string name_in_set(std::uint32_t index, const image_id &set);

struct set_position {
  std::uint32_t index = 0;
  image_id set;
  bool operator==(const set_position &) const = default;
};
// The inverse; nullopt: not such a name.
std::optional<set_position> parse_name_in_set(std::string_view name);

// A random id for a set or an image. Errors: those of the system's random source.
result<image_id> make_id();

struct set_options {
  bool replace = false;  // replace a set in the directory; false: that is an error
  bool force = false;    // as write_options::force, of all images of that set
  checkpoint::file_system *files = &checkpoint::file_system::system();
};

// Writes the file `folder`/set atomically. set_writer does this and what is required.
// Requires: the images are written under their names, with the id of this set, their index and
//           their number (write_options).
// Errors:   invalid_argument (no images, or more than max_images_in_set); std::errc::file_exists
//           (not replacing, and there is a set); errors of system calls.
status write_set(const std::string &folder, const image_set &what, const set_options &options = {});

// Reads the file `folder`/set.
// Errors: corrupt; not_supported (a newer version); std::errc::no_such_file_or_directory (no set);
//         errors of system calls.
result<image_set> read_set(const std::string &folder,
                           checkpoint::file_system &files = checkpoint::file_system::system());

// The same, of an open directory.
result<image_set> read_set(int directory, checkpoint::file_system &files);

// Opens all images of a set and checks that they are those that the set names. If the set is
// replaced meanwhile, the result is the old set or the new one.
// Errors: those of read_set and reader::open.
result<std::vector<reader>> open_set(const std::string &folder, const open_options &options = {});

// Opens one image of a set.
// Requires: index < set.images.size().
// Errors:   those of reader::open; corrupt (not the image that the set names).
result<reader> open_in_set(const std::string &folder, const image_set &set, std::uint32_t index,
                           const open_options &options = {});

// Whether `parent` or one of its own parents is an image of `set`.
bool depends_on(const reader &parent, const image_set &set);

}  // namespace stillmap::image
