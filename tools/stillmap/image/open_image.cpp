#include "tools/stillmap/image/open_image.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>

#include "stillmap/checkpoint/image/image_set.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t max_key_file_bytes = 256;

}  // namespace

image::codec codec_of(const std::string &name) {
  return name == "lz4"    ? image::codec::lz4
         : name == "zstd" ? image::codec::zstd
                          : image::codec::none;
}

outcome<std::array<std::byte, 32>> read_key(const std::string &path, image::secrecy who) {
  const char *const op = who == image::secrecy::owner ? "--key" : "--signed-by";
  STILLMAP_ASSIGN_OR_RETURN(std::string text,
                            about(image::read_key_file(path, max_key_file_bytes, who, op), path));
  std::array<std::byte, 32> key{};
  if (text.size() == key.size()) {
    for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(text[i]);
    return key;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  bool good = text.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const char *const digits = text.data() + 2 * i;
    std::uint8_t value = 0;
    good = std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2;
    key[i] = static_cast<std::byte>(value);
  }
  if (good) return key;
  return fail(exit_usage, fmt::format("{}: a key is 32 bytes, or 64 hexadecimal digits", path));
}

outcome<image::open_options> open_options_of(const image_options &o) {
  image::open_options out;
  out.parents = o.parents;
  if (!o.key.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key, read_key(o.key, image::secrecy::owner));
    out.key = image::secret_key{key};
  }
  if (!o.signed_by.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto key, read_key(o.signed_by, image::secrecy::everybody));
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
