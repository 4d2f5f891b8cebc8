// How a layout refers to memory that another process published. docs/publication.md#checkpoints
#pragma once

#include <cstdint>
#include <string>

#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/vmm/base/units.h"

namespace stillmap::checkpoint {

// A block whose contents are what another process published: the layout refers to it in place of pages.
struct published_reference {
  virtual_range range;
  std::string tag;
  std::string name;                               // under which it was published
  fixed_bytes<32, struct publication_id_tag> id;  // of the contents
  std::uint32_t block = 0;                        // of the publication, which may have several
  bool operator==(const published_reference &) const = default;
};

}  // namespace stillmap::checkpoint
