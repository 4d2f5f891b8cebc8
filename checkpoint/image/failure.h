// How reading or writing an image fails: what `stillmap::error` says, and where in which file, what
// is there and what should be.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "stillmap/vmm/error.h"

namespace stillmap::image {

// Where in an image.
enum class part : std::uint8_t {
  file,  // as a whole, or not yet known
  superblock,
  extents,
  chunk_table,
  manifest,
  seals,
  signature,
  parent,
  set,
};
const char *name_of(part p) noexcept;

// Unlike `error` it owns its text. `why` is what to act on: its code compares equal to
//   errc::corrupt           damaged, forged, or not an image
//   errc::not_supported     a newer version, unknown flags
//   errc::invalid_argument  the call was wrong, or a key is missing or another
//   std::errc::...               what the system said
struct failure {
  error why;
  std::string file;  // its path; empty: no file yet
  part where = part::file;
  std::uint64_t offset = 0;  // bytes from the start of the file
  std::string found;         // what is there; empty where that says nothing
  std::string expected;

  bool is(errc c) const { return why.is(c); }
  // "a.smi: superblock at 24: the file is longer than it says (there is 8192, should be 4096):
  // corrupt". Allocates.
  std::string message() const;
};

template <class T>
using outcome = tl::expected<T, failure>;
using done = outcome<void>;

// For the code that fails. Operation and reason are literals.
tl::unexpected<failure> fail(errc c, const char *operation, const char *reason,
                             part where = part::file, std::uint64_t offset = 0,
                             std::string found = {}, std::string expected = {});
// What the system said, `code` being an errno.
tl::unexpected<failure> fail_system(int code, const char *operation, const char *reason,
                                    std::uint64_t offset = 0);

// The same failure, of a file whose path is known now.
template <class T>
outcome<T> in_file(outcome<T> o, const std::string &path) {
  if (!o && o.error().file.empty()) o.error().file = path;
  return o;
}

}  // namespace stillmap::image
