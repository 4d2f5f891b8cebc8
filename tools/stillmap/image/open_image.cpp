#include "tools/stillmap/image/open_image.h"

#include <filesystem>
#include <system_error>

#include "stillmap/checkpoint/base/key_file.h"
#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::tool {
image::codec codec_of(const std::string &name) {
  return name == "lz4"    ? image::codec::lz4
         : name == "zstd" ? image::codec::zstd
                          : image::codec::none;
}

outcome<image::open_options> open_options_of(const image_options &o) {
  image::open_options out;
  out.parents = o.parents;
  if (!o.key.empty()) {
    const operation_scope scope("--key");
    STILLMAP_ASSIGN_OR_RETURN(
        const auto key, about(checkpoint::read_key(o.key, checkpoint::secrecy::owner), o.key));
    out.key = image::secret_key{key};
  }
  if (!o.signed_by.empty()) {
    const operation_scope scope("--signed-by");
    STILLMAP_ASSIGN_OR_RETURN(
        const auto key,
        about(checkpoint::read_key(o.signed_by, checkpoint::secrecy::everybody), o.signed_by));
    out.signed_by = image::verifying_key{key};
  }
  return out;
}

outcome<image::reader> open_image(const std::string &path, const image_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(const auto options, open_options_of(o));
  return about(image::reader::open(path, options), path);
}

outcome<std::vector<image::reader>> open_images(const std::string &path, const image_options &o) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    STILLMAP_ASSIGN_OR_RETURN(auto one, open_image(path, o));
    return std::vector<image::reader>{std::move(one)};
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto options, open_options_of(o));
  return about(image::open_set(path, options), path);
}

}  // namespace stillmap::tool
