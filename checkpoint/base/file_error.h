// Errors about a place in a file, with the offset, the value found and the value expected.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "stillmap/vmm/base/error.h"

namespace stillmap::checkpoint {

// "superblock at 24", where a part is named; else "offset 4096", or nothing at offset 0.
std::string position(const char *where, std::uint64_t offset);

// Operation and reason are literals. `where`: a part of the file, or "". `offset` counts bytes from the
// start of the file.
tl::unexpected<error> file_error(errc c, const char *reason, const char *where,
                                 std::uint64_t offset, std::string found = {},
                                 std::string expected = {});
// An error of the operating system at an offset of the file; `code` is an errno.
tl::unexpected<error> system_error_at(int code, const char *reason, std::uint64_t offset);

// The same error, about the file at `path` unless it is about another file already or the host has
// no memory for the path.
tl::unexpected<error> in_file(const tl::unexpected<error> &e, const std::string &path) noexcept;
template <class T>
result<T> in_file(result<T> r, const std::string &path) noexcept {
  if (!r) r.error() = in_file(tl::unexpected<error>(r.error()), path).value();
  return r;
}

}  // namespace stillmap::checkpoint
