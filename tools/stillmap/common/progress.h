// How far a long job is, on standard error: a line that is redrawn on a terminal, a line now and
// then elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

class progress {
 public:
  // `expected` bytes in all, 0 where nobody knows. Silent: prints nothing at all.
  progress(std::string what, std::uint64_t expected, bool silent);
  progress(const progress &) = delete;
  ~progress() { finish(); }

  // So many after all.
  void expect(std::uint64_t bytes) { expected_ = bytes; }
  // `detail` follows the numbers. Cheap enough to call for every chunk.
  void update(std::uint64_t bytes, std::string_view detail);
  // Takes the line away from a terminal.
  void finish();

 private:
  std::string bar(std::uint64_t bytes) const;

  using clock = std::chrono::steady_clock;
  std::string what_;
  std::uint64_t expected_;
  bool silent_;
  terminal terminal_;
  clock::time_point begun_ = clock::now();
  clock::time_point shown_ = begun_;
  bool drawn_ = false;
};

}  // namespace stillmap::tool
