// Host memory that is kept for each block or page group, of those that there can be.
#include <gtest/gtest.h>

#include <cstdio>

#include "stillmap/allocators/kv/block_memory.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory.h"

namespace stillmap::testing {
namespace {

// ThreadSanitizer leaves less than 1 TiB of addresses, of which sequences take twice what they need.
constexpr std::size_t blocks = 100'000;
constexpr std::size_t most_bytes_a_block = 64;

class kv_books : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }
  template <class Make>
  static void check(const char *what, std::size_t of, const Make &make) {
    const std::uint64_t before = host_allocated_bytes();
    const auto made = make();
    const std::uint64_t bytes = host_allocated_bytes() - before;
    ASSERT_DONE(made);
    EXPECT_GE(bytes, of) << "what is kept of a block takes a byte at least";
    EXPECT_LE(bytes, of * most_bytes_a_block);
    std::printf("note: KV arena: %s: %.1f bytes of host memory\n", what,
                static_cast<double>(bytes) / static_cast<double>(of));
  }
};

// With a quarter of a page group, and with one.
TEST_F(kv_books, named_blocks) {
  for (const std::size_t tokens : {4, 16}) {
    check("block_memory, a block", blocks, [&] {
      return kv::block_memory::create(dev(), {.shape = {2, 2, page() / 64},
                                              .tokens_per_block = tokens,
                                              .blocks = blocks,
                                              .layers_per_range = 2});
    });
  }
}

// Of each page group that sequences can have at once.
TEST_F(kv_books, sequences) {
  check("sequence_arena, a page group", blocks, [&] {
    return kv::sequence_arena::create(dev(), {.shape = {2, 2, page() / 64},
                                              .longest = 16 * 200,
                                              .sequences = 1000,
                                              .layers_per_range = 2});
  });
}

}  // namespace
}  // namespace stillmap::testing
