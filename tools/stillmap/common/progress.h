// Shows the progress of a long job on standard error: on a terminal a line that is redrawn, elsewhere
// a line every few seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/stillmap/common/terminal.h"

namespace stillmap::tool {

class progress {
 public:
  // `expected`: bytes in total, 0: unknown. Silent: prints nothing.
  progress(std::string what, std::uint64_t expected, bool silent);
  progress(const progress &) = delete;
  ~progress() { finish(); }

  void expect(std::uint64_t bytes) { expected_ = bytes; }
  // `detail` is printed after the numbers. Cheap enough to call for every chunk.
  void update(std::uint64_t bytes, std::string_view detail);
  // Erases the line from a terminal.
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
