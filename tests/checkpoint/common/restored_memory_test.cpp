// Memory that is restored from a layout: what an assignment releases.
#include "stillmap/checkpoint/common/restored_memory.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::checkpoint {
namespace {

class restored_memory_test : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  static device_address block_address(std::size_t i) {
    return device_address(stillmap::testing::far_away + i * 0x1'0000'0000);
  }
  // A block of one page with pattern(.., i).
  restored_memory one_page(std::size_t i) const {
    std::vector<page_ptr> pages;
    if (!dev().pool()->acquire(1, pages)) throw std::runtime_error("no page");
    memory_layout l;
    l.blocks = {{{block_address(i), page()}, "weights"}};
    l.pages = {{page(), pages[0]->properties()}};
    l.access = {{{on_device(dev().ordinal()), access_mode::read_write}}};
    l.places = {{block_address(i), 0, 0}};
    auto made = restored_memory::reserve(dev(), std::move(l));
    if (!made) throw std::runtime_error(made.error().message());
    if (const status s = made->map(pages); !s) throw std::runtime_error(s.error().message());
    stillmap::testing::put(dev(), block_address(i),
                           stillmap::testing::pattern(page(), static_cast<unsigned>(i)));
    return std::move(*made);
  }
};

TEST_F(restored_memory_test, an_assignment_takes_the_memory_and_leaves_its_own) {
  restored_memory kept = one_page(1);
  {
    restored_memory other = one_page(2);
    kept = std::move(other);
  }
  const auto blocks = dev().space().blocks();
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].range, (virtual_range{block_address(2), page()}));
  EXPECT_EQ(blocks[0].mapped_bytes, page());
  EXPECT_TRUE(stillmap::testing::holds(dev(), block_address(2), page(), 2));
  EXPECT_TRUE(kept.release(fence()));
  EXPECT_EQ(dev().space().stats().live_blocks, 0u);
}

}  // namespace
}  // namespace stillmap::checkpoint
