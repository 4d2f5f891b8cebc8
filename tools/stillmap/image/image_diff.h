// Compares the memory of two images, address by address.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::tool {

// A page of an image at one of its addresses.
struct image_place {
  std::uint64_t begin, end;  // addresses
  std::uint64_t at;          // in the contents
  std::uint32_t tag;
};
// In address order.
std::vector<image_place> places_of(const image::manifest &m);

enum class difference { contents, only_in_first, only_in_second };

struct differing_range {
  virtual_range range;
  difference what = difference::contents;
  std::string tag;  // of its block, in the first image that has it

  bool operator==(const differing_range &) const = default;
};

struct image_difference {
  std::vector<differing_range> ranges;  // in address order, merged where they touch
  std::uint64_t same = 0, changed = 0, only_in_first = 0, only_in_second = 0;  // bytes of addresses
  std::uint64_t bytes_read = 0;  // bytes that were compared by reading them
};

// Compares the contents of images of one chain by their digests, where chunks begin at the same
// addresses, and reads the others. The result is exact to a chunk, or to 4,096 bytes where contents
// are read.
// Errors: those of reader::read.
result<image_difference> compare(const image::reader &first, const image::reader &second);

}  // namespace stillmap::tool
