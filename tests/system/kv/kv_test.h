// A block arena with contents that say where they belong.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

class kv_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }

  // Eight blocks of four tokens in a page group, which is a page in each of two ranges.
  kv::block_arena_options options(std::string tag = "cache", std::size_t blocks = 64) const {
    return {.shape = {4, 2, page() / 128},
            .tokens_per_block = 4,
            .blocks = blocks,
            .layers_per_range = 2,
            .spare_blocks = 0,
            .tag = std::move(tag)};
  }
  std::unique_ptr<kv::block_arena> arena(const kv::block_arena_options &o) const {
    auto made = kv::block_arena::create(dev(), o);
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
  static status step(kv::block_arena &a, std::size_t free) {
    const status prepared = a.prepare(free, stream_ref::legacy());
    return prepared ? a.begin_step() : prepared;
  }
  // Blocks with memory, each with one reference and contents of its own.
  std::vector<kv::block_id> filled_blocks(kv::block_arena &a, std::size_t n, int seed = 0) const {
    std::vector<kv::block_id> ids(n);
    EXPECT_TRUE(step(a, n));
    EXPECT_TRUE(a.allocate(ids));
    for (const kv::block_id b : ids) fill(a, b, seed);
    return ids;
  }
  static void fill(const kv::block_arena &a, kv::block_id b, int seed = 0) {
    each_part(a, b, [&](unsigned char *at, std::uint32_t part) {
      for (std::size_t i = 0; i < a.layout().block_bytes(); ++i) at[i] = byte(b, seed, part, i);
    });
  }
  static bool is_filled(const kv::block_arena &a, kv::block_id b, int seed = 0) {
    bool same = true;
    each_part(a, b, [&](const unsigned char *at, std::uint32_t part) {
      for (std::size_t i = 0; i < a.layout().block_bytes() && same; ++i) {
        same = at[i] == byte(b, seed, part, i);
      }
    });
    return same;
  }
  static void expect_filled(const kv::block_arena &a, std::span<const kv::block_id> ids,
                            int seed = 0) {
    for (const kv::block_id b : ids) EXPECT_TRUE(is_filled(a, b, seed)) << "block " << b;
  }
  void wait() const {
    const context_guard guard(dev().driver(), dev().context());
    EXPECT_TRUE(dev().driver().synchronize_context());
  }

 private:
  static unsigned char byte(kv::block_id b, int seed, std::uint32_t part, std::size_t i) {
    return static_cast<unsigned char>(b * 37 + static_cast<unsigned>(seed) * 101 + part * 11 + i +
                                      (i >> 8) * 7);
  }
  template <class Act>
  static void each_part(const kv::block_arena &a, kv::block_id b, const Act &act) {
    const kv::shape &s = a.layout().shape();
    for (std::uint32_t l = 0; l < s.layers; ++l) {
      for (std::uint32_t t = 0; t < s.tensors; ++t) {
        act(static_cast<unsigned char *>(
                (a.tensor(l, t) + b * a.layout().block_stride()).pointer()),
            l * s.tensors + t);
      }
    }
  }
};

}  // namespace stillmap::testing
