// block_arena beside a naive model.
#include <gtest/gtest.h>

#include "tests/allocators/kv/block_model.h"
#include "tests/allocators/kv/operations.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

class kv_block_model : public buffer_test {
 protected:
  void try_all(const block_model_options &o, std::size_t operations) {
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    for (unsigned seed = 1; seed <= 3 && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      block_model m(dev(), o, seed);
      m.run(some_of(operations));
      m.end();
    }
  }
};

// Four blocks in a page, two ranges.
TEST_F(kv_block_model, blocks_smaller_than_a_page) {
  try_all({.shape = {4, 2, page() / 64},
           .tokens_per_block = 4,
           .blocks = 100,
           .spare_blocks = 8,
           .layers_per_range = 2},
          2000);
}

// Blocks of 3/8 of a page: some lie in two.
TEST_F(kv_block_model, blocks_that_cross_pages) {
  try_all({.shape = {3, 1, page() / 32},
           .tokens_per_block = 4,
           .blocks = 61,
           .spare_blocks = 0,
           .layers_per_range = 3},
          2000);
}

// Blocks of 2.5 pages: their neighbours share pages.
TEST_F(kv_block_model, blocks_larger_than_a_page) {
  try_all({.shape = {5, 2, page() / 64},
           .tokens_per_block = 16,
           .blocks = 23,
           .spare_blocks = 2,
           .layers_per_range = 5},
          600);
}

// Many operations; what blocks hold is checked by the others.
TEST_F(kv_block_model, many_operations) {
  try_all({.shape = {4, 2, page() / 256},
           .tokens_per_block = 4,
           .blocks = 400,
           .spare_blocks = 32,
           .layers_per_range = 1,
           .contents = false},
          10000);
}

}  // namespace
}  // namespace stillmap::testing
