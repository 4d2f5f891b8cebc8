// Where the keys and values of each token lie. An arena has one or more ranges of addresses of equal length; each
// holds the tensors of some layers. In a range, all that those layers keep of one block lies together, and the next
// block follows. docs/kv_layout.md
#pragma once

#include <cstddef>
#include <cstdint>

#include "stillmap/vmm/base/error.h"

namespace stillmap::kv {

// What a model keeps of each token.
struct shape {
  std::uint32_t layers = 0;
  std::uint32_t tensors =
      2;  // of a layer: keys and values; 1: both in one, or one latent tensor (MLA)
  std::size_t token_bytes =
      0;  // of one token in one tensor: heads * dimension * bytes of an element

  std::size_t bytes_per_token() const { return std::size_t{layers} * tensors * token_bytes; }
};

// Of one range: pages [first, first + count).
struct page_span {
  std::size_t first = 0, count = 0;
  std::size_t end() const { return first + count; }
};

// A page group is the pages at one position of all ranges. They are mapped and unmapped together, because a token has
// bytes in each of them: it is the unit in which an arena takes and gives back memory.
class layout {
 public:
  // `layers_per_range`: 0 for the rule, which is the fewest layers with which a page group holds at most 64 tokens, or
  // all where no number does that. More layers in a range make a page group smaller, so that less of it is unused,
  // and the distance between two blocks of one tensor longer, so that a kernel touches more pages.
  // `page_bytes`: a power of two.
  // Errors: invalid_argument (a value of 0, a number of layers that does not divide them: value, limit = layers; more
  //         bytes than there can be).
  static result<layout> create(const shape &s, std::size_t tokens_per_block, std::size_t page_bytes,
                               std::uint32_t layers_per_range = 0);

  const kv::shape &shape() const { return shape_; }
  std::size_t tokens_per_block() const { return tokens_per_block_; }
  std::uint32_t layers_per_range() const { return layers_per_range_; }
  std::uint32_t ranges() const { return shape_.layers / layers_per_range_; }
  std::size_t page_bytes() const { return page_bytes_; }
  std::size_t group_bytes() const { return page_bytes_ * ranges(); }

  // Bytes of a block in one tensor, and from a block to the next one of the same tensor.
  std::size_t block_bytes() const { return tokens_per_block_ * shape_.token_bytes; }
  std::size_t block_stride() const { return block_bytes() * shape_.tensors * layers_per_range_; }

  // The range in which a layer's tensors are, and where in it they begin. Requires: layer < shape().layers,
  // tensor < shape().tensors.
  std::uint32_t range_of(std::uint32_t layer) const { return layer / layers_per_range_; }
  std::size_t offset_in_range(std::uint32_t layer, std::uint32_t tensor) const {
    return (std::size_t{layer % layers_per_range_} * shape_.tensors + tensor) * block_bytes();
  }

  // Pages that hold any byte of these blocks, and pages that hold bytes of them alone.
  page_span pages_of(std::size_t first_block, std::size_t blocks) const;
  page_span pages_within(std::size_t first_block, std::size_t blocks) const;

 private:
  layout(const kv::shape &s, std::size_t tokens_per_block, std::size_t page_bytes,
         std::uint32_t layers_per_range)
      : shape_(s),
        tokens_per_block_(tokens_per_block),
        page_bytes_(page_bytes),
        layers_per_range_(layers_per_range) {}

  kv::shape shape_;
  std::size_t tokens_per_block_, page_bytes_;
  std::uint32_t layers_per_range_;
};

}  // namespace stillmap::kv
