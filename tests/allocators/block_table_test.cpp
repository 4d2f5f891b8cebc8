// The table of an arena's blocks.
#include "stillmap/allocators/engine/block_table.h"

#include <gtest/gtest.h>

#include "stillmap/allocators/engine/extent.h"

namespace stillmap {
namespace {

TEST(block_table, its_host_memory_is_that_of_its_entries) {
  constexpr std::size_t entries = 10000, entry_bytes = 16;  // an address, and what is there
  block_table t;
  const std::size_t before = t.host_bytes();
  for (std::size_t i = 1; i <= entries; ++i) {
    t.make_room(1);
    t.insert(i * allocation_granule, block_ref());
  }
  EXPECT_EQ(t.size(), entries);
  EXPECT_GE(t.host_bytes(), before + entries * entry_bytes);
  EXPECT_LE(t.host_bytes(), 8 * entries * entry_bytes);
}

}  // namespace
}  // namespace stillmap
