// One object of each kind of the C API, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "stillmap/c_api.h"

namespace stillmap::testing {

// A struct of zeros with its size.
template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

// The latest failure of this thread.
stillmap_error last_c_error();
inline std::string c_message() {
  return stillmap_error_message();
}
inline ::testing::AssertionResult c_done(stillmap_status s) {
  if (s == STILLMAP_OK) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << stillmap_status_name(s) << ": " << c_message();
}

// The functions that exports.map names, in its order. The tests' working folder is the project's.
std::vector<std::string> exported_functions();

// Throws std::runtime_error where something cannot be made.
struct c_world {
  explicit c_world(bool with_quota = true);
  ~c_world();
  c_world(const c_world &) = delete;
  c_world &operator=(const c_world &) = delete;

  stillmap_device *device = nullptr;
  stillmap_buffer *buffer = nullptr;  // one page, of the tag "buffer"
  stillmap_vector *vector = nullptr;  // four elements of four bytes
  stillmap_quota *quota = nullptr;
  stillmap_allocator *allocator = nullptr;
  stillmap_suspender *suspender = nullptr;
  std::string quota_name;
  std::size_t page = 0;
  bool vmm = false;
};

}  // namespace stillmap::testing
