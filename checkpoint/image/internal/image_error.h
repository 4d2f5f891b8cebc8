// Errors about a part of an image file, with the offset, the value found and the value expected.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "stillmap/vmm/base/error.h"

namespace stillmap::image {

// The parts of an image, as error_detail::where names them: "superblock at 24".
namespace part {
inline constexpr const char *file = "";  // the file as a whole, or a part that is not known yet
inline constexpr const char *superblock = "superblock";
inline constexpr const char *extents = "extents";
inline constexpr const char *chunk_table = "chunk table";
inline constexpr const char *manifest = "manifest";
inline constexpr const char *seals = "seals";
inline constexpr const char *signature = "signature";
inline constexpr const char *parent = "parent";
inline constexpr const char *set = "set";
}  // namespace part

// "superblock at 24"; of the file as a whole "offset 4096", or nothing at offset 0.
std::string position(const char *where, std::uint64_t offset);

// Operation and reason are literals. `offset` counts bytes from the start of the file.
tl::unexpected<error> image_error(errc c, const char *operation, const char *reason,
                                  const char *where, std::uint64_t offset, std::string found = {},
                                  std::string expected = {});
// An error of the operating system at an offset of the file; `code` is an errno.
tl::unexpected<error> image_system_error(int code, const char *operation, const char *reason,
                                         std::uint64_t offset);

// The same error, about the file at `path` unless it is about another file already or the host has
// no memory for the path.
tl::unexpected<error> in_file(const tl::unexpected<error> &e, const std::string &path) noexcept;
template <class T>
result<T> in_file(result<T> r, const std::string &path) noexcept {
  if (!r) r.error() = in_file(tl::unexpected<error>(r.error()), path).value();
  return r;
}

}  // namespace stillmap::image
