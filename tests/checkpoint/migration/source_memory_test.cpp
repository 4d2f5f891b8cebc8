// Memory of a task that is sent: what is known of its chunks.
#include "stillmap/checkpoint/migration/internal/source_memory.h"

#include <gtest/gtest.h>

#include "tests/support/buffer_test.h"

namespace stillmap::migration::testing {
namespace {

class leaving : public stillmap::testing::buffer_test {};

// Otherwise each growth would send all of it again.
TEST_F(leaving, chunks_of_pages_that_stay_are_known_after_the_task_has_grown) {
  STILLMAP_NEEDS_VMM();
  constexpr std::uint32_t chunk_bytes = 64 << 10;
  const std::size_t in_page = page() / chunk_bytes;
  growable_buffer b = filled(2, "grows", 1);
  source_memory m(dev(), std::vector<std::string>{"grows"}, chunk_bytes);
  auto different = m.update();
  ASSERT_DONE(different);
  EXPECT_TRUE(*different);
  ASSERT_EQ(m.chunks().size(), 2 * in_page);
  for (std::size_t i = 0; i < m.chunks().size(); ++i) {
    source_memory::chunk &c = m.chunks()[i];
    EXPECT_FALSE(c.known);
    c.known = i != 1;
    c.sent.bytes[0] = static_cast<std::byte>(i);
  }
  const std::vector<source_memory::chunk> before = m.chunks();
  different = m.update();
  ASSERT_DONE(different);
  EXPECT_FALSE(*different);
  ASSERT_TRUE(b.resize(3 * page()));
  different = m.update();
  ASSERT_DONE(different);
  EXPECT_TRUE(*different);
  ASSERT_EQ(m.chunks().size(), 3 * in_page);
  for (std::size_t i = 0; i < m.chunks().size(); ++i) {
    const source_memory::chunk &c = m.chunks()[i];
    EXPECT_EQ(c.at, (virtual_range{b.address() + i * chunk_bytes, chunk_bytes}));
    EXPECT_EQ(c.known, i < before.size() && i != 1) << i;
    if (c.known) {
      EXPECT_EQ(c.number, before[i].number);
      EXPECT_EQ(c.sent, before[i].sent);
    }
  }
}

}  // namespace
}  // namespace stillmap::migration::testing
