// What the commands that read images have in common.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/image/writer.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

struct image_options {
  std::vector<std::string> parents;
  std::string key, signed_by;  // files
};
void add_image_options(CLI::App &app, image_options &into);

// Errors: exit_usage: a key file that is none; exit_failed: what is wrong with the image.
outcome<image::reader> open_image(const std::string &path, const image_options &o);
// The images of a set, where `path` is a folder; else the one image.
outcome<std::vector<image::reader>> open_images(const std::string &path, const image_options &o);
outcome<image::open_options> open_options_of(const image_options &o);

// A key as 32 bytes, or as 64 hexadecimal digits. Errors: exit_usage.
outcome<std::array<std::byte, 32>> read_key(const std::string &path);

inline tl::unexpected<failure> fail(const image::failure &why) {
  return fail(exit_failed, why.message());
}

}  // namespace stillmap::tool
