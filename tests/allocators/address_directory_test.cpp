// Which arena owns an address: ranges of every size, side by side, at the ends of the tables, added and
// removed.
#include "stillmap/allocators/engine/address_directory.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

namespace stillmap {
namespace {

constexpr std::uint64_t one_unit = address_directory::unit;
constexpr std::uint64_t one_leaf = one_unit << 12;  // the addresses of one leaf table

// Never dereferenced.
arena *owner(std::uintptr_t n) {
  return reinterpret_cast<arena *>(n * 64);
}

void add(address_directory &d, std::uint64_t begin, std::uint64_t bytes, arena *a) {
  const virtual_range range{device_address(begin), bytes};
  d.expect(range);
  d.add(range, a);
}
void remove(address_directory &d, std::uint64_t begin, std::uint64_t bytes) {
  d.remove({device_address(begin), bytes});
}

// Both ends of the range belong to `a`, and what lies around it does not.
void expect_owns(const address_directory &d, arena *a, std::uint64_t begin, std::uint64_t bytes) {
  EXPECT_EQ(d.at(begin), a);
  EXPECT_EQ(d.at(begin + bytes / 2), a);
  EXPECT_EQ(d.at(begin + bytes - 1), a);
  EXPECT_NE(d.at(begin - 1), a);
  EXPECT_NE(d.at(begin + bytes), a);
}

TEST(address_directory, ranges_of_every_size_are_found_until_they_are_removed) {
  const auto d = std::make_unique<address_directory>();
  for (const std::uint64_t begin :
       {one_leaf, one_leaf + one_unit, 2 * one_leaf - one_unit, one_leaf * 4096 - one_leaf}) {
    for (const std::uint64_t bytes :
         {one_unit, 2 * one_unit, one_leaf - one_unit, one_leaf, one_leaf + one_unit, 2 * one_leaf,
          3 * one_leaf + 5 * one_unit}) {
      add(*d, begin, bytes, owner(1));
      expect_owns(*d, owner(1), begin, bytes);
      for (std::uint64_t at = begin; at < begin + bytes; at += 97 * one_unit) {
        ASSERT_EQ(d->at(at), owner(1)) << at;
      }
      remove(*d, begin, bytes);
      for (const std::uint64_t at : {begin, begin + bytes / 2, begin + bytes - 1}) {
        EXPECT_EQ(d->at(at), nullptr) << begin << " " << bytes;
      }
    }
  }
}

TEST(address_directory, neighbours_keep_their_owners) {
  const auto d = std::make_unique<address_directory>();
  add(*d, 3 * one_leaf, one_leaf, owner(1));
  add(*d, 4 * one_leaf, 2 * one_leaf + one_unit, owner(2));
  add(*d, 6 * one_leaf + one_unit, one_unit, owner(3));
  expect_owns(*d, owner(1), 3 * one_leaf, one_leaf);
  expect_owns(*d, owner(2), 4 * one_leaf, 2 * one_leaf + one_unit);
  expect_owns(*d, owner(3), 6 * one_leaf + one_unit, one_unit);
  remove(*d, 4 * one_leaf, 2 * one_leaf + one_unit);
  EXPECT_EQ(d->at(5 * one_leaf), nullptr);
  EXPECT_EQ(d->at(6 * one_leaf), nullptr);
  expect_owns(*d, owner(1), 3 * one_leaf, one_leaf);
  expect_owns(*d, owner(3), 6 * one_leaf + one_unit, one_unit);
  add(*d, 4 * one_leaf, one_leaf, owner(4));  // where one table ends
  add(*d, 5 * one_leaf, one_leaf + one_unit, owner(5));
  expect_owns(*d, owner(4), 4 * one_leaf, one_leaf);
  expect_owns(*d, owner(5), 5 * one_leaf, one_leaf + one_unit);
}

TEST(address_directory, addresses_beyond_all_tables_have_no_owner) {
  const auto d = std::make_unique<address_directory>();
  constexpr std::uint64_t end = std::uint64_t{1} << address_directory::address_bits;
  EXPECT_EQ(d->at(0), nullptr);
  EXPECT_EQ(d->at(end), nullptr);
  EXPECT_EQ(d->at(~std::uint64_t{0}), nullptr);
  add(*d, end - one_unit, one_unit, owner(1));
  EXPECT_EQ(d->at(end - 1), owner(1));
  add(*d, 0, one_unit, owner(2));
  EXPECT_EQ(d->at(end), nullptr) << "the first address does not come again";
}

TEST(address_directory, random_ranges_are_as_in_a_map) {
  const auto d = std::make_unique<address_directory>();
  std::mt19937_64 random(5);
  std::map<std::uint64_t, std::pair<std::uint64_t, arena *>> there;  // begin: end, owner
  const auto overlaps = [&](std::uint64_t begin, std::uint64_t end) {
    const auto next = there.lower_bound(begin);
    if (next != there.end() && next->first < end) return true;
    return next != there.begin() && std::prev(next)->second.first > begin;
  };
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t begin = random() % 40000 * one_unit;
    const std::uint64_t bytes =
        (random() % 3 == 0 ? random() % 9000 : random() % 20) * one_unit + one_unit;
    if (!overlaps(begin, begin + bytes)) {
      arena *const a = owner(1 + random() % 9);
      add(*d, begin, bytes, a);
      there[begin] = {begin + bytes, a};
    } else if (const auto it = there.lower_bound(begin); it != there.end()) {
      remove(*d, it->first, it->second.first - it->first);
      there.erase(it);
    }
    const std::uint64_t at = random() % 50000 * one_unit + random() % one_unit;
    auto it = there.upper_bound(at);
    const bool inside = it != there.begin() && (--it)->second.first > at;
    ASSERT_EQ(d->at(at), inside ? it->second.second : nullptr) << i;
  }
}

}  // namespace
}  // namespace stillmap
