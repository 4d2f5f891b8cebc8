// Whether a device can hold the pages of a layout.
#include "stillmap/checkpoint/common/page_factory.h"

#include <gtest/gtest.h>

#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::checkpoint {
namespace {

using stillmap::testing::fails_with;

class page_factories : public stillmap::testing::buffer_test {
 protected:
  // One block of `pages` pages of this size.
  static memory_layout layout_of(std::size_t pages, std::size_t bytes) {
    const device_address at(stillmap::testing::far_away);
    physical_properties here;
    here.location = on_device(memory_layout::own_device);
    memory_layout l;
    l.blocks = {{{at, pages * bytes}, "weights"}};
    l.pages.assign(pages, {bytes, here});
    l.access = {{{here.location, access_mode::read_write}}};
    for (std::uint32_t i = 0; i < pages; ++i) l.places.push_back({at + i * bytes, i, 0});
    return l;
  }
};

// As in an image that a device with smaller pages saved.
TEST_F(page_factories, pages_of_a_size_that_the_device_cannot_create_are_not_supported) {
  STILLMAP_NEEDS_VMM();
  EXPECT_TRUE(can_hold(dev(), layout_of(2, page())));
  EXPECT_TRUE(can_hold(dev(), layout_of(2, 2 * page())));
  const status finer = can_hold(dev(), layout_of(4, page() / 2));
  EXPECT_TRUE(fails_with(finer, errc::not_supported, "checkpoint::can_hold"));
  EXPECT_STREQ(finer.error().reason, "the device cannot create pages of this size and kind");
  memory_layout page_of_another_size = layout_of(1, page());
  page_of_another_size.pages[0].bytes = page() / 2;
  EXPECT_TRUE(fails_with(can_hold(dev(), page_of_another_size), errc::not_supported,
                         "checkpoint::can_hold", page() / 2, page()));
}

TEST_F(page_factories, pages_larger_than_the_memory_do_not_fit) {
  STILLMAP_NEEDS_VMM();
  const std::size_t all = dev().memory()->total.bytes() / page();
  EXPECT_TRUE(can_hold(dev(), layout_of(1, all * page())));
  EXPECT_TRUE(fails_with(can_hold(dev(), layout_of(1, (all + 1) * page())), errc::out_of_memory,
                         "checkpoint::can_hold", (all + 1) * page(),
                         dev().memory()->total.bytes()));
}

}  // namespace
}  // namespace stillmap::checkpoint
