// An arena with a prefix cache, and what is expected of one that comes back.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "tests/system/kv/kv_test.h"

namespace stillmap::testing {

class prefix_cache_fixture : public kv_test {
 protected:
  using entry = prefix_cache::entry;

  // Keys of any bytes.
  static std::vector<entry> table(std::span<const kv::block_id> ids) {
    std::vector<entry> out;
    for (const kv::block_id b : ids) {
      out.push_back({b, std::string("\0\xff", 2) + std::to_string(b * 7919)});
    }
    return out;
  }
  // Every third of 24 blocks, the last one first; one of them is used.
  std::vector<entry> fill_cache(kv::block_arena &a) const {
    const auto ids = filled_blocks(a, 24);
    std::vector<kv::block_id> cached, others;
    for (const kv::block_id b : ids) (b % 3 == 0 ? cached : others).push_back(b);
    EXPECT_TRUE(a.release(std::span(cached).subspan(1), kv::block_arena::contents::keep));
    EXPECT_TRUE(a.release(others));
    std::reverse(cached.begin(), cached.end());
    return table(cached);
  }
  void expect_cached(const kv::block_arena &a, const std::vector<entry> &entries) const {
    EXPECT_EQ(a.stats().cached, entries.size());
    EXPECT_EQ(a.stats().used, 0u);
    for (const entry &e : entries) EXPECT_TRUE(is_filled(a, e.block)) << "block " << e.block;
  }
  static void empty(kv::block_arena &a) {
    std::vector<kv::block_id> evicted;
    ASSERT_TRUE(a.evict(SIZE_MAX, evicted));
    ASSERT_TRUE(a.trim());
    EXPECT_EQ(a.stats().mapped_bytes, 0u);
  }
};

}  // namespace stillmap::testing
