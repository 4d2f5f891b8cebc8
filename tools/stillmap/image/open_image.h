// Opens images, and sets of them, as the options of the image commands say.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/internal/key_file.h"
#include "stillmap/checkpoint/image/reader.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct image_options {
  std::vector<std::string> parents;
  std::string key, signed_by;  // key files
};

// Errors: a key file that cannot be used; the reader's, which name the file.
outcome<image::reader> open_image(const std::string &path, const image_options &o);
// The images of a set, where `path` is a folder; else the one image.
outcome<std::vector<image::reader>> open_images(const std::string &path, const image_options &o);
outcome<image::open_options> open_options_of(const image_options &o);

// "none", "lz4" or "zstd".
image::codec codec_of(const std::string &name);

// Reads a key: 32 bytes, or 64 hexadecimal digits.
// Errors: exit_not_found, exit_usage, exit_refused (a secret key that others may read or write).
outcome<std::array<std::byte, 32>> read_key(const std::string &path, image::secrecy who);

}  // namespace stillmap::tool
