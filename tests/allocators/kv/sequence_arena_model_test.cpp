// sequence_arena beside a naive model.
#include <gtest/gtest.h>

#include "tests/allocators/kv/operations.h"
#include "tests/allocators/kv/sequence_model.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

class kv_sequence_model : public buffer_test {
 protected:
  void try_all(const sequence_model_options &o, std::size_t operations) {
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    for (unsigned seed = 1; seed <= 3 && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      sequence_model m(dev(), o, seed);
      m.run(some_of(operations));
      m.end();
    }
  }
};

// 16 tokens in a page group, two ranges.
TEST_F(kv_sequence_model, sixteen_tokens_in_a_page) {
  try_all({.shape = {4, 2, page() / 64},
           .longest = 100,
           .sequences = 12,
           .spare_bytes = 4 * page(),
           .layers_per_range = 2},
          2000);
}

// Tokens of 3/32 of a page: some lie in two.
TEST_F(kv_sequence_model, tokens_that_cross_pages) {
  try_all({.shape = {3, 1, page() / 32},
           .longest = 90,
           .sequences = 8,
           .spare_bytes = 0,
           .layers_per_range = 3},
          2000);
}

// A token of 1.25 pages.
TEST_F(kv_sequence_model, tokens_larger_than_a_page) {
  try_all({.shape = {5, 2, page() / 8},
           .longest = 40,
           .sequences = 6,
           .spare_bytes = 16 * page(),
           .layers_per_range = 5},
          400);
}

// Many operations; what sequences hold is checked by the others.
TEST_F(kv_sequence_model, many_operations) {
  try_all({.shape = {4, 2, page() / 64},
           .longest = 200,
           .sequences = 30,
           .spare_bytes = 16 * page(),
           .layers_per_range = 2,
           .contents = false},
          10000);
}

}  // namespace
}  // namespace stillmap::testing
