#include "tools/stillmap/image/image_options.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "stillmap/checkpoint/image/image_set.h"

namespace stillmap::tool {

void add_image_options(CLI::App &app, image_options &into) {
  app.add_option("--parent", into.parents,
                 "where a parent of an incremental image is, if not beside it: an\nimage, or a "
                 "folder of them")
      ->type_name("PATH");
  app.add_option("--key", into.key,
                 "of an encrypted image: a file with 32 bytes, or 64\nhexadecimal digits")
      ->type_name("FILE");
  app.add_option("--signed-by", into.signed_by,
                 "refuse what is not signed with this key (the public half,\nin the same form)")
      ->type_name("FILE");
}

outcome<std::array<std::byte, 32>> read_key(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail(exit_usage, fmt::format("{}: cannot be read", path));
  std::string text;
  for (char c; text.size() < 256 && file.get(c);) text += c;
  std::array<std::byte, 32> key{};
  if (text.size() == key.size()) {
    for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(text[i]);
    return key;
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  bool good = text.size() == 2 * key.size();
  for (std::size_t i = 0; good && i < key.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    good = high >= 0 && low >= 0;
    key[i] = static_cast<std::byte>(16 * high + low);
  }
  if (good) return key;
  return fail(exit_usage, fmt::format("{}: a key is 32 bytes, or 64 hexadecimal digits", path));
}

outcome<image::open_options> open_options_of(const image_options &o) {
  image::open_options out;
  out.parents = o.parents;
  if (!o.key.empty()) {
    const auto key = read_key(o.key);
    if (!key) return tl::unexpected(key.error());
    out.key = image::secret_key{*key};
  }
  if (!o.signed_by.empty()) {
    const auto key = read_key(o.signed_by);
    if (!key) return tl::unexpected(key.error());
    out.signed_by = image::verifying_key{*key};
  }
  return out;
}

outcome<image::reader> open_image(const std::string &path, const image_options &o) {
  const auto how = open_options_of(o);
  if (!how) return tl::unexpected(how.error());
  auto opened = image::reader::open(path, *how);
  if (!opened) return fail(opened.error());
  return std::move(*opened);
}

outcome<std::vector<image::reader>> open_images(const std::string &path, const image_options &o) {
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) {
    auto one = open_image(path, o);
    if (!one) return tl::unexpected(one.error());
    return std::vector<image::reader>{std::move(*one)};
  }
  const auto how = open_options_of(o);
  if (!how) return tl::unexpected(how.error());
  auto opened = image::open_set(path, *how);
  if (!opened) return fail(opened.error());
  return std::move(*opened);
}

}  // namespace stillmap::tool
