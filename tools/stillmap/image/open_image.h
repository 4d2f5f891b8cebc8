// Opens images, and sets of them, as the options of the image commands say.
#pragma once

#include <string>
#include <vector>

#include "stillmap/checkpoint/image/codec.h"
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

}  // namespace stillmap::tool
