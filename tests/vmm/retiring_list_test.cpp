// retiring_list against a naive model.
#include "stillmap/vmm/retiring_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace stillmap {
namespace {

virtual_range pages(std::uint64_t first, std::size_t n) {
  return {device_address(0x100000 + first * 0x1000), n * 0x1000};
}
std::vector<virtual_range> ranges(const retiring_list &l) {
  std::vector<virtual_range> out;
  for (const retiring_range &r : l) out.push_back(r.range);
  return out;
}
std::vector<virtual_range> ranges(const std::vector<retiring_range> &l) {
  std::vector<virtual_range> out;
  for (const retiring_range &r : l) out.push_back(r.range);
  return out;
}

TEST(retiring_list, is_in_the_order_of_time_and_found_by_address) {
  retiring_list l;
  l.add({nullptr, pages(10, 4), {}});
  l.add({nullptr, pages(2, 2), {}});
  l.add({nullptr, pages(20, 1), {}});
  EXPECT_EQ(ranges(l), (std::vector{pages(10, 4), pages(2, 2), pages(20, 1)}));
  EXPECT_EQ(l.at(pages(13, 1).begin)->range, pages(10, 4));
  EXPECT_EQ(l.at(pages(14, 1).begin), nullptr);
  EXPECT_EQ(l.at(pages(0, 1).begin), nullptr);
  EXPECT_EQ(ranges(l.take(pages(3, 9))), (std::vector{pages(10, 4), pages(2, 2)}));
  EXPECT_EQ(ranges(l), std::vector{pages(20, 1)});
  EXPECT_EQ(ranges(l.take_all()), std::vector{pages(20, 1)});
  EXPECT_EQ(l.at(pages(20, 1).begin), nullptr);
}

TEST(retiring_list, what_is_cut_leaves_both_ends_where_the_whole_stood) {
  retiring_list l;
  l.add({nullptr, pages(10, 5), {}});
  l.add({nullptr, pages(0, 3), {}});
  l.cut(pages(12, 1));
  EXPECT_EQ(ranges(l), (std::vector{pages(10, 2), pages(13, 2), pages(0, 3)}));
  l.cut(pages(1, 10));
  EXPECT_EQ(ranges(l), (std::vector{pages(11, 1), pages(13, 2), pages(0, 1)}));
  EXPECT_EQ(l.at(pages(14, 1).begin)->range, pages(13, 2));
  EXPECT_EQ(l.at(pages(10, 1).begin), nullptr);
  l.cut(pages(0, 100));
  EXPECT_TRUE(ranges(l).empty());
}

TEST(retiring_list, agrees_with_a_plain_vector) {
  std::mt19937 random(1);
  retiring_list l;
  std::vector<virtual_range> plain;
  for (int i = 0; i < 20000; ++i) {
    const virtual_range r = pages(random() % 200, 1 + random() % 6);
    const auto overlaps = [&](const virtual_range &other) { return other.overlaps(r); };
    switch (random() % 4) {
      case 0:
      case 1:
        if (std::any_of(plain.begin(), plain.end(), overlaps)) break;
        l.add({nullptr, r, {}});
        plain.push_back(r);
        break;
      case 2: {
        std::vector<virtual_range> taken;
        std::copy_if(plain.begin(), plain.end(), std::back_inserter(taken), overlaps);
        std::erase_if(plain, overlaps);
        ASSERT_EQ(ranges(l.take(r)), taken);
        break;
      }
      default: {
        std::vector<virtual_range> left;
        for (const virtual_range &p : plain) {
          if (!overlaps(p)) {
            left.push_back(p);
            continue;
          }
          if (p.begin < r.begin) left.push_back({p.begin, r.begin - p.begin});
          if (r.end() < p.end()) left.push_back({r.end(), p.end() - r.end()});
        }
        plain = left;
        l.cut(r);
      }
    }
    ASSERT_EQ(ranges(l), plain) << i;
    const device_address at = pages(random() % 210, 1).begin;
    const auto there = std::find_if(plain.begin(), plain.end(),
                                    [&](const virtual_range &p) { return p.contains(at); });
    const retiring_range *const found = l.at(at);
    ASSERT_EQ(found != nullptr, there != plain.end());
    if (found != nullptr) {
      ASSERT_EQ(found->range, *there);
    }
  }
}

}  // namespace
}  // namespace stillmap
