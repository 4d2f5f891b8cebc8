// Images to test with: a manifest and contents that belong together, in a folder of their own.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::image {

// What a test writes, and compares with.
struct sample {
  manifest what;
  std::vector<std::byte> contents;
};

struct sample_shape {
  unsigned seed = 1;
  std::size_t pages = 12;
  std::size_t most_blocks_in_page = 70;  // of 4,096 bytes
  bool aliases = true;                   // some pages at two addresses
};

// Pages of many sizes, some alike, some zero, some that compress.
sample make_sample(const sample_shape &shape = {});
// Some chunks changed, nothing moved.
sample changed(const sample &s, unsigned seed);

std::vector<std::byte> bytes_of_file(const std::string &path);
void put_file(const std::string &path, const std::vector<std::byte> &bytes);
std::vector<std::string> names_in(const std::string &folder);

// A folder that is gone after the test.
class image_test : public ::testing::Test {
 protected:
  image_test();
  ~image_test() override;

  std::string path(const std::string &name) const { return folder_ + "/" + name; }
  const std::string &folder() const { return folder_; }

  // Small chunks and one thread: the same every time.
  static write_options small();
  written put(const std::string &name, const sample &s, const write_options &options = small());
  // Opens, verifies and compares every byte.
  void expect_holds(const std::string &name, const sample &s, const open_options &options = {});

 private:
  std::string folder_;
};

}  // namespace stillmap::image
