// Fuzz target for images: the first byte selects how the input is used, the rest is a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/fuzz.h"

namespace stillmap::image {

enum class fuzz_mode : std::uint8_t {
  as_it_is,  // a file
  resealed,  // a file whose digests are made right first, as far as it can be told where they are
  all_digests,  // and those of stored bytes, so that compressors see the bytes
  manifest,     // a manifest
  encrypted,    // a file that is opened with a key, whose superblock has the tag by that key
  child,        // a file that is made a child of an image which has a parent itself
  count
};

// A description of the failure; empty: none.
std::string fuzz_image(const std::uint8_t *data, std::size_t size);
// Small images of every kind: the initial corpus.
std::vector<stillmap::testing::fuzz_input> fuzz_corpus();

}  // namespace stillmap::image
