// A stream of bytes of unknown length: a file, a pipe, standard input, or a large file found on this
// machine, read repeatedly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/base/owned_fd.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

class byte_source {
 public:
  // `file`: a path, or "-" for standard input. A regular file is read again from its beginning until
  // at least `at_least` bytes have been read.
  // Errors: exit_not_found (no such file), exit_refused (unreadable), exit_usage (a directory;
  //         `at_least` of a file that can be read only once).
  static outcome<byte_source> open(const std::string &file, std::uint64_t at_least = 0);
  // The largest file of Python, a compiler or a C library on this machine; else this program.
  static outcome<byte_source> open_default(std::uint64_t at_least);

  // Fills `into` from the front; fewer bytes only at the end of the stream.
  outcome<std::size_t> read(std::span<std::byte> into);
  // Returns to the beginning. Requires: rereadable().
  void rewind();

  bool rereadable() const { return regular_; }
  const std::string &name() const { return name_; }     // "/usr/bin/python3.11", "standard input"
  std::uint64_t file_bytes() const { return bytes_; }   // 0 where unknown
  std::uint64_t at_least() const { return at_least_; }  // 0: once

 private:
  byte_source() = default;
  static outcome<byte_source> over(owned_fd fd, std::string name, std::uint64_t at_least);

  owned_fd fd_;
  bool regular_ = false;
  std::string name_;
  std::uint64_t bytes_ = 0;
  std::uint64_t at_least_ = 0;
  std::uint64_t begin_ = 0;      // where in the file the stream begins
  std::uint64_t at_ = 0;         // where in the file it is now
  std::uint64_t delivered_ = 0;  // in all
};

// The largest readable regular file among `patterns` (glob), or an empty string.
std::string largest_file(const std::vector<std::string> &patterns);

}  // namespace stillmap::tool
