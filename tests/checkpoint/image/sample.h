// Sample images: a manifest with matching contents, in a temporary directory.
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

// A manifest and contents to write and to compare with.
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

// Pages of many sizes: some equal, some zero, some compressible.
sample make_sample(const sample_shape &shape = {});
// A copy with some chunks changed.
sample changed(const sample &s, unsigned seed);

std::vector<std::byte> bytes_of_file(const std::string &path);
void put_file(const std::string &path, const std::vector<std::byte> &bytes);
std::vector<std::string> names_in(const std::string &folder);

// A temporary directory for each test.
class image_test : public ::testing::Test {
 protected:
  image_test();
  ~image_test() override;

  std::string path(const std::string &name) const { return folder_ + "/" + name; }
  const std::string &folder() const { return folder_; }

  // Small chunks and one thread: deterministic.
  static write_options small();
  written put(const std::string &name, const sample &s, const write_options &options = small());
  // Opens, verifies and compares every byte.
  void expect_holds(const std::string &name, const sample &s, const open_options &options = {});

 private:
  std::string folder_;
};

}  // namespace stillmap::image
