// Memory of a task that is sent: what is known of its chunks.
#include "stillmap/checkpoint/migration/internal/source_memory.h"

#include <gtest/gtest.h>

#include "tests/support/buffer_test.h"
#include "tests/support/colliding_chunks.h"

namespace stillmap::migration::testing {
namespace {

class leaving : public stillmap::testing::buffer_test {};

// Otherwise each growth would send all of it again.
TEST_F(leaving, chunks_of_pages_that_stay_are_known_after_the_task_has_grown) {
  STILLMAP_NEEDS_VMM();
  constexpr std::uint32_t chunk_bytes = 64 << 10;
  const std::size_t in_page = page() / chunk_bytes;
  growable_buffer b = filled(2, "grows", 1);
  source_memory m(dev(), std::vector<std::string>{"grows"}, chunk_bytes, {});
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

// A task that knows how changes are found must not be able to hide one.
TEST_F(leaving, a_change_made_to_collide_is_found) {
  STILLMAP_NEEDS_VMM();
  const auto [a, b] = stillmap::testing::colliding_chunks(64 << 10);
  ASSERT_EQ(image::digest_of(a), image::digest_of(b));
  const growable_buffer memory = filled(1, "changes", 1);
  source_memory m(dev(), std::vector<std::string>{"changes"}, 64 << 10,
                  image::make_digest_key().value());
  ASSERT_TRUE(m.update());
  ASSERT_TRUE(m.prepare_digests());
  const auto write = [&](const std::vector<std::byte> &bytes) {
    const auto *const at = reinterpret_cast<const unsigned char *>(bytes.data());
    stillmap::testing::put(dev(), memory.address(), {at, at + bytes.size()});
  };
  write(a);
  source_memory::chunk &c = m.chunks().front();
  c.sent = image::digest_of_contents(m.key(), a).value();
  c.known = true;
  const std::size_t first[] = {0};
  EXPECT_TRUE(m.changed(first)->empty());
  write(b);
  EXPECT_EQ(m.changed(first)->size(), 1U);
}

}  // namespace
}  // namespace stillmap::migration::testing
