// mapping_index against std::map.
#include "stillmap/vmm/internal/mapping_index.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <utility>

namespace stillmap {
namespace {

constexpr std::size_t unit = std::size_t{2} << 20;

std::unique_ptr<mapping_entry> entry_at(device_address at, std::size_t bytes = unit) {
  auto e = std::make_unique<mapping_entry>();
  e->range = {at, bytes};
  return e;
}

class mapping_index_test : public ::testing::Test {
 protected:
  void insert(device_address at) {
    index.expect(at);
    known[at.value()] = &index.insert(entry_at(at));
  }
  void remove(device_address at) {
    const auto gone = index.remove(*known.at(at.value()));
    EXPECT_EQ(gone->range.begin, at);
    known.erase(at.value());
  }
  mapping_entry *from(device_address at) {
    const auto it = known.lower_bound(at.value());
    return it == known.end() ? nullptr : it->second;
  }
  mapping_entry *before(device_address at) {
    const auto it = known.lower_bound(at.value());
    return it == known.begin() ? nullptr : std::prev(it)->second;
  }
  void compare_at(device_address at) {
    const auto it = known.find(at.value());
    EXPECT_EQ(index.find(at), it == known.end() ? nullptr : it->second) << std::hex << at.value();
    EXPECT_EQ(index.from(at), from(at)) << std::hex << at.value();
    EXPECT_EQ(index.before(at), before(at)) << std::hex << at.value();
  }
  void compare_all() {
    ASSERT_EQ(index.size(), known.size());
    mapping_entry *e = index.first();
    for (const auto &[at, expected] : known) {
      ASSERT_EQ(e, expected);
      e = index.after(*e);
    }
    EXPECT_EQ(e, nullptr);
  }

  mapping_index index{unit};
  std::map<std::uint64_t, mapping_entry *> known;
};

TEST_F(mapping_index_test, agrees_with_a_map) {
  std::mt19937_64 random(1);
  // Pages near the edges of tables, which have 512, and of groups of 64.
  const auto somewhere = [&] {
    const std::uint64_t table = random() % 5 * 7, in = random() % 3 * 64 + random() % 3;
    return device_address((table * 512 + (random() % 2 != 0 ? in : 511 - in)) * unit);
  };
  for (int i = 0; i < 20000; ++i) {
    const device_address at = somewhere();
    if (!known.contains(at.value())) {
      insert(at);
    } else if (random() % 3 != 0) {
      remove(at);
    }
    const device_address asked = somewhere();
    compare_at(asked);
    compare_at(asked + unit / 2);  // within a page
    if (i % 500 == 0) compare_all();
  }
  while (!known.empty()) remove(device_address(known.begin()->first));
  compare_all();
}

TEST_F(mapping_index_test, the_ends_of_all_addresses) {
  compare_at(device_address(0));
  const device_address last((std::uint64_t{1} << 57) - unit);
  insert(device_address(0));
  insert(last);
  for (const device_address at :
       {device_address(0), device_address(unit), last, last + unit, device_address(UINT64_MAX)}) {
    compare_at(at);
  }
  compare_all();
}

TEST_F(mapping_index_test,
       what_is_not_expected_any_more_takes_no_memory_and_can_be_expected_again) {
  const std::uint64_t table = 512 * unit;
  insert(device_address(3 * table));
  index.expect(device_address(4 * table));
  index.trim({device_address(0), 100 * table});
  compare_all();
  compare_at(device_address(4 * table));
  insert(device_address(4 * table + unit));
  index.trim({device_address(4 * table + unit), table});
  compare_all();
  remove(device_address(3 * table));
  index.trim({device_address(0), 4 * table});
  compare_all();
}

TEST_F(mapping_index_test, pages_of_other_sizes) {
  index.expect(device_address(0));
  mapping_entry &large = index.insert(entry_at(device_address(4 * unit), 16 * unit));
  mapping_entry &small = index.insert(entry_at(device_address(20 * unit)));
  EXPECT_EQ(index.from(device_address(5 * unit)), &small);
  EXPECT_EQ(index.before(device_address(5 * unit)), &large);
  EXPECT_EQ(index.after(large), &small);
}

}  // namespace
}  // namespace stillmap
