#include "stillmap/checkpoint/base/file_error.h"

#include <new>

namespace stillmap::checkpoint {

std::string position(const char *where, std::uint64_t offset) {
  if (*where != '\0') return std::string(where) + " at " + std::to_string(offset);
  return offset == 0 ? std::string() : "offset " + std::to_string(offset);
}

tl::unexpected<error> file_error(errc c, const char *reason, const char *where,
                                 std::uint64_t offset, std::string found, std::string expected) {
  return tl::unexpected<error>(
      make_error(c, reason).value().with({.where = position(where, offset),
                                          .found = std::move(found),
                                          .expected = std::move(expected)}));
}

tl::unexpected<error> system_error_at(int code, const char *reason, std::uint64_t offset) {
  return tl::unexpected<error>(
      make_system_error(code, reason).value().with({.where = position("", offset)}));
}

tl::unexpected<error> in_file(const tl::unexpected<error> &e, const std::string &path) noexcept {
  try {
    return tl::unexpected<error>(e.value().about(path));
  } catch (const std::bad_alloc &) {
    return e;
  }
}

}  // namespace stillmap::checkpoint
