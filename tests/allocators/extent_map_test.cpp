// Extent maps without a driver: random operations against a model with one byte for each granule.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <map>
#include <random>
#include <vector>

#include "stillmap/allocators/engine/extent_map.h"

namespace stillmap {
namespace {

constexpr std::size_t map_page = 16 * allocation_granule;
constexpr std::uint64_t base = 0x10000000;
constexpr std::size_t map_pages = 64;

// What each granule is, written down by whoever did it.
class naive_map {
 public:
  enum kind : char { uncommitted = '-', free = '.', live = '#', unmapping = '>' };
  void set(std::uint64_t begin, std::uint64_t bytes, kind k) {
    for (std::uint64_t at = begin; at < begin + bytes; at += allocation_granule) cell(at) = k;
  }
  bool all(std::uint64_t begin, std::uint64_t bytes, kind k) {
    for (std::uint64_t at = begin; at < begin + bytes; at += allocation_granule) {
      if (cell(at) != k) return false;
    }
    return true;
  }
  std::size_t count(kind k) const {
    return static_cast<std::size_t>(std::count(cells_.begin(), cells_.end(), k)) *
           allocation_granule;
  }
  std::size_t whole_free_pages() {
    std::size_t n = 0;
    for (std::size_t p = 0; p < map_pages; ++p) n += all(base + p * map_page, map_page, free);
    return n;
  }
  // The longest run of granules of which each is one of `kinds`.
  std::size_t longest(const std::string &kinds) const {
    std::size_t best = 0, run = 0;
    for (const char c : cells_) {
      run = kinds.find(c) != std::string::npos ? run + allocation_granule : 0;
      best = std::max(best, run);
    }
    return best;
  }
  std::string drawn() const { return {cells_.begin(), cells_.end()}; }

 private:
  char &cell(std::uint64_t at) { return cells_.at((at - base) / allocation_granule); }
  std::vector<char> cells_ =
      std::vector<char>(map_pages * map_page / allocation_granule, uncommitted);
};

std::string drawn(const extent_map &extents) {
  std::string out;
  extents.each([&](const extent &s) {
    const char c = s.state == extent_state::uncommitted ? '-'
                   : s.state == extent_state::free      ? '.'
                   : s.state == extent_state::live      ? '#'
                                                        : '>';
    out.append(s.bytes / allocation_granule, c);
  });
  return out;
}

class extent_map_model : public ::testing::TestWithParam<unsigned> {};

TEST_P(extent_map_model, agrees_with_a_byte_per_granule) {
  std::mt19937 random(GetParam());
  const auto below = [&](std::size_t n) { return random() % n; };
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  naive_map model;
  std::map<std::uint64_t, extent *> blocks;
  std::vector<extent *> unmapping;
  std::size_t carved = 0, abandoned = 0, placed = 0, taken = 0;

  for (int step = 0; step < 4000; ++step) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
      case 3: {  // allocate
        const std::uint64_t bytes = (1 + below(below(4) == 0 ? 100 : 20)) * allocation_granule;
        const std::uint64_t alignment = allocation_granule << (below(3) == 0 ? below(6) : 0);
        extent *s = extents.place(bytes, alignment);
        if (s == nullptr) {
          if (alignment == allocation_granule) {
            ASSERT_LT(model.longest("."), bytes) << "it would have fitted";
          }
          const auto e =
              extents.carve(bytes, alignment,
                            below(2) ? extent_map::search::quick : extent_map::search::thorough);
          if (!e) {
            if (alignment == allocation_granule) {
              ASSERT_LT(model.longest("-"), bytes) << "there were addresses";
            }
            break;
          }
          ASSERT_EQ(extents.find_inconsistency(true), "");
          ASSERT_TRUE(
              model.all(e->missing.begin.value(), e->missing.bytes, naive_map::uncommitted));
          ASSERT_EQ(e->missing.begin.value() % map_page, 0u);
          if (below(3) == 0) {
            extents.abandon(*e);
            ++abandoned;
            break;
          }
          s = extents.commit(*e);
          model.set(e->missing.begin.value(), e->missing.bytes, naive_map::free);
          ++carved;
        } else {
          ++placed;
        }
        ASSERT_EQ(s->bytes, bytes);
        ASSERT_EQ(s->begin % alignment, 0u);
        ASSERT_TRUE(model.all(s->begin, s->bytes, naive_map::free)) << "not free, or not committed";
        model.set(s->begin, s->bytes, naive_map::live);
        blocks[s->begin] = s;
        break;
      }
      case 4:
      case 5: {  // free
        if (blocks.empty()) break;
        const auto it = std::next(blocks.begin(), static_cast<long>(below(blocks.size())));
        model.set(it->second->begin, it->second->bytes, naive_map::free);
        extents.release(it->second);
        blocks.erase(it);
        break;
      }
      case 6: {  // pages go
        std::vector<extent *> out;
        const std::size_t wanted = 1 + below(12), there = model.whole_free_pages();
        const std::size_t n = extents.take_pages(wanted, out);
        ASSERT_EQ(n, std::min(wanted, there));
        for (extent *s : out) {
          ASSERT_TRUE(model.all(s->begin, s->bytes, naive_map::free));
          ASSERT_EQ(s->begin % map_page, 0u);
          model.set(s->begin, s->bytes, naive_map::unmapping);
          unmapping.push_back(s);
        }
        taken += n;
        break;
      }
      default: {  // and are gone, or stay after all
        if (unmapping.empty()) break;
        const std::size_t i = below(unmapping.size());
        extent *const s = unmapping[i];
        unmapping.erase(unmapping.begin() + static_cast<long>(i));
        if (below(3) == 0) {
          model.set(s->begin, s->bytes, naive_map::free);
          extents.put_back(s);
        } else {
          model.set(s->begin, s->bytes, naive_map::uncommitted);
          extents.unmapped(s);
        }
      }
    }
    ASSERT_EQ(extents.find_inconsistency(), "") << "step " << step;
    ASSERT_EQ(drawn(extents), model.drawn()) << "step " << step;
    ASSERT_EQ(extents.free_pages(), model.whole_free_pages());
    ASSERT_EQ(extents.free_bytes(), model.count(naive_map::free));
    ASSERT_EQ(extents.committed_bytes(),
              model.count(naive_map::free) + model.count(naive_map::live));
  }
  EXPECT_GT(carved, 20u);
  EXPECT_GT(abandoned, 10u);
  EXPECT_GT(placed, 50u);
  EXPECT_GT(taken, 20u);
}

INSTANTIATE_TEST_SUITE_P(seeds, extent_map_model, ::testing::Range(1u, 13u));

TEST(extent_map, neighbours_share_their_boundary_page) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  const auto first =
      extents.carve(map_page + allocation_granule, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->missing.bytes, 2 * map_page);
  extent *const a = extents.commit(*first);
  // The second begins in the page that the first has started, and needs two pages, not three.
  const auto second = extents.carve(3 * map_page - 2 * allocation_granule, allocation_granule,
                                    extent_map::search::quick);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->missing.bytes, 2 * map_page);
  extent *const b = extents.commit(*second);
  EXPECT_EQ(b->begin, a->end());
  EXPECT_EQ(extents.committed_bytes(), 4 * map_page);
  EXPECT_EQ(extents.free_bytes(), allocation_granule);
}

TEST(extent_map, a_hole_between_free_neighbours_is_preferred_to_the_end) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  extent *blocks[3];
  for (extent *&b : blocks) {
    b = extents.commit(*extents.carve(8 * map_page, allocation_granule, extent_map::search::quick));
  }
  extents.release(blocks[1]);
  std::vector<extent *> out;
  ASSERT_EQ(extents.take_pages(2, out), 2u);
  ASSERT_EQ(out.size(), 1u);
  extents.unmapped(out[0]);
  const auto e = extents.carve(8 * map_page, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->begin, base + 8 * map_page);
  EXPECT_EQ(e->missing.bytes, 2 * map_page);
  extents.abandon(*e);
  EXPECT_EQ(extents.find_inconsistency(), "");
}

TEST(extent_map, addresses_behind_free_memory_that_was_used_up_are_found_by_their_new_size) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  const auto carve = [&](std::size_t pages) {
    return extents.carve(pages * map_page, allocation_granule, extent_map::search::quick);
  };
  extents.commit(*carve(4));
  extent *const gone = extents.commit(*carve(4)), *const last = extents.commit(*carve(4));
  const std::uint64_t hole = gone->begin;
  extents.release(gone);
  std::vector<extent *> out;
  ASSERT_EQ(extents.take_pages(4, out), 4u);
  extents.unmapped(out.at(0));
  extents.release(last);
  ASSERT_EQ(extents.find_inconsistency(), "");
  const auto e = carve(8);  // the hole, and all free memory behind it
  ASSERT_TRUE(e);
  EXPECT_EQ(e->begin, hole);
  EXPECT_EQ(extents.find_inconsistency(true), "");
  extents.commit(*e);
  EXPECT_EQ(extents.find_inconsistency(), "");
}

// While the missing pages are being mapped, what is left of the free neighbour serves others.
TEST(extent_map, a_carved_block_takes_no_more_of_its_neighbour_than_it_needs) {
  extent_map extents(map_page);
  extents.add({device_address(base), 8 * map_page});
  const auto carve = [&](std::size_t pages, std::size_t alignment) {
    return extents.carve(pages * map_page, alignment * map_page, extent_map::search::quick);
  };
  extent *const gone = extents.commit(*carve(4, 1)), *const neighbour =
                                                         extents.commit(*carve(4, 1));
  extents.release(gone);
  std::vector<extent *> out;
  ASSERT_EQ(extents.take_pages(4, out), 4u);
  extents.unmapped(out.at(0));
  extents.release(neighbour);
  ASSERT_EQ(extents.place(5 * map_page, 2 * map_page), nullptr);
  const auto e = carve(5, 2);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->begin, base + 2 * map_page);
  EXPECT_EQ(extents.free_bytes(), map_page) << "the last";
  extent *const rest = extents.place(map_page, map_page);
  ASSERT_NE(rest, nullptr);
  EXPECT_EQ(rest->begin, base + 7 * map_page);
  extents.commit(*e);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(extents.free_bytes(), 0u);
}

TEST(extent_map, a_block_of_whole_pages_begins_at_a_page) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page}, true);
  extent *const odd = extents.place(map_page / 2);
  ASSERT_EQ(odd->begin, base);
  EXPECT_EQ(extents.place(2 * map_page)->begin, base + map_page);
  EXPECT_EQ(extents.place(map_page + allocation_granule)->begin, base + 3 * map_page);
  EXPECT_EQ(extents.find_inconsistency(), "");
}

// The same choice, made by looking at every free extent.
const extent *best_of_all(const extent_map &extents, std::uint64_t bytes) {
  const std::uint64_t step = bytes % map_page == 0 ? map_page : allocation_granule;
  const extent *best = nullptr;
  extents.each([&](const extent &s) {
    const std::uint64_t at = (s.begin + step - 1) / step * step;
    if (s.state != extent_state::free || at + bytes > s.end()) return;
    if (best == nullptr || std::pair(s.bytes, s.begin) < std::pair(best->bytes, best->begin))
      best = &s;
  });
  return best;
}

TEST(extent_map, a_block_goes_to_the_lowest_of_the_smallest_extents_that_fit) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  int exact = 0, compared = 0;
  for (int round = 0; round < 20; ++round) {
    extent_map extents(map_page);
    extents.add({device_address(base), map_pages * map_page}, true);
    std::vector<extent *> live;
    for (int i = 0; i < 400; ++i) {
      if (!live.empty() && below(5) < 2) {
        std::swap(live[below(live.size())], live.back());
        extents.release(live.back());
        live.pop_back();
        continue;
      }
      const std::uint64_t bytes = (1 + below(1 + below(80))) * allocation_granule;
      const extent *const expected = best_of_all(extents, bytes);
      if (expected == nullptr) continue;
      const virtual_range wanted = expected->range();
      extent *const s = extents.place(bytes);
      ASSERT_NE(s, nullptr);
      ASSERT_TRUE(wanted.contains(s->range()));
      ++(wanted.bytes == bytes ? exact : compared);
      live.push_back(s);
    }
    ASSERT_EQ(extents.find_inconsistency(), "");
  }
  EXPECT_GT(exact, 100);
  EXPECT_GT(compared, 1000);
}

// The bin of a size has extents that are too small too.
TEST(extent_map, a_search_goes_on_until_something_fits) {
  constexpr std::size_t too_small = 65 * allocation_granule, wanted = 67 * allocation_granule;
  for (const std::size_t bytes : {wanted, 2 * wanted}) {  // in that bin, and in a later one
    extent_map extents(map_page);
    extents.add({device_address(base), 2048 * map_page}, true);
    std::vector<extent *> going;
    for (int i = 0; i < 300; ++i) {
      going.push_back(extents.place(too_small));
      ASSERT_NE(extents.place(allocation_granule), nullptr);
    }
    extent *const fits = extents.place(bytes);
    ASSERT_NE(fits, nullptr);
    ASSERT_NE(extents.place(allocation_granule), nullptr);
    ASSERT_NE(extents.place(extents.free_bytes()), nullptr);
    const std::uint64_t begin = fits->begin;
    for (extent *const s : going) extents.release(s);
    ASSERT_EQ(extents.place(wanted), nullptr);
    extents.release(fits);
    extent *const found = extents.place(wanted);
    ASSERT_NE(found, nullptr) << bytes;
    EXPECT_EQ(found->begin, begin);
    EXPECT_EQ(extents.find_inconsistency(), "");
  }
}

TEST(extent_map, a_place_takes_over_what_is_nobodys) {
  extent_map extents(map_page);
  extents.add({device_address(base), 8 * map_page}, true);
  extent *const low = extents.place(map_page + map_page / 2);
  extent *const middle = extents.place(map_page / 4);
  extent *const high = extents.place(2 * map_page + map_page / 4);
  ASSERT_EQ(low->end(), middle->begin);
  ASSERT_EQ(middle->end(), high->begin);
  const std::uint64_t begin = base + map_page, bytes = 2 * map_page;
  extent *const s = extents.place_at(low, begin, bytes);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(s->begin, begin);
  EXPECT_EQ(s->bytes, bytes);
  EXPECT_EQ(s->state, extent_state::live);
  EXPECT_EQ(extents.free_bytes(), 6 * map_page) << "with what was cut off at both ends";
  EXPECT_EQ(extents.at(base)->state, extent_state::free);
  EXPECT_EQ(extents.at(begin + bytes)->end(), base + 8 * map_page);
}

TEST(extent_map, a_page_at_two_addresses_is_free_at_one) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  extent *const first =
      extents.commit(*extents.carve(4 * map_page, allocation_granule, extent_map::search::quick));
  extent *const guard =
      extents.commit(*extents.carve(map_page, allocation_granule, extent_map::search::quick));
  const std::uint64_t here = first->begin, there = guard->end();
  extents.release(first);
  std::vector<extent *> out;
  ASSERT_EQ(extents.take_pages(4, out), 4u);
  const auto e = extents.carve(4 * map_page, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(e);
  ASSERT_EQ(e->missing.begin.value(), there);
  extents.expect_aliases(4);
  extents.add_alias(out[0], there, extents);
  extent *const second = extents.commit(*e);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(extents.committed_bytes(), 5 * map_page);
  EXPECT_EQ(extents.aliased_bytes(), 4 * map_page);
  EXPECT_EQ(extents.place(map_page), nullptr);
  EXPECT_EQ(extents.at(here + 3 * map_page + 1)->state, extent_state::aliased);
  EXPECT_EQ(extents.owner_of(here + map_page), there + map_page);
  EXPECT_EQ(extents.next_run(here + map_page, 3, 7, extents).owner, there + map_page);
  EXPECT_EQ(extents.next_run(here, 4, 7, extents).pages, 1u) << "it was told of the others";
  EXPECT_EQ(extents.next_run(here, 4, 8, extents).pages, 4u);

  extents.release(second);
  extents.recall(here + map_page, 1);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(extents.committed_bytes(), 5 * map_page);
  EXPECT_EQ(extents.at(here + map_page)->state, extent_state::free);
  EXPECT_EQ(extents.at(there + map_page)->state, extent_state::aliased);
  EXPECT_EQ(extents.owner_of(there + map_page), here + map_page);
  EXPECT_EQ(extents.free_pages(), 4u);

  extents.recall(there + map_page, 1);
  extents.recall(here + map_page, 3);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(extents.at(here + map_page), extents.at(here + 3 * map_page));
  EXPECT_EQ(extents.owner_of(there + 2 * map_page), here + 2 * map_page);
  EXPECT_EQ(extents.owner_of(there), there);
  EXPECT_EQ(extents.aliased_bytes(), 4 * map_page);

  out.clear();
  extents.drop_aliases(out);
  std::size_t bytes = 0;
  for (extent *s : out) {
    bytes += s->bytes;
    extents.unmapped(s);
  }
  EXPECT_EQ(bytes, 4 * map_page);
  EXPECT_EQ(extents.find_inconsistency(), "");
  EXPECT_EQ(extents.committed_bytes(), 5 * map_page);
}

// Two maps of the same pages: those of one are used in the other, return, and are used there again.
TEST(extent_map, pages_are_lent_to_another_map_and_return) {
  const auto shared = std::make_shared<shared_pages>();
  extent_map one(map_page, true, shared), other(map_page, true, shared);
  constexpr std::uint64_t elsewhere = base + 1024 * map_page;
  one.add({device_address(base), map_pages * map_page});
  other.add({device_address(elsewhere), map_pages * map_page});
  const auto consistent = [&] {
    EXPECT_EQ(one.find_inconsistency(), "");
    EXPECT_EQ(other.find_inconsistency(), "");
    EXPECT_EQ(one.committed_bytes() + other.committed_bytes(), 4 * map_page);
  };
  const auto search = extent_map::search::quick;
  one.release(one.commit(*one.carve(4 * map_page, allocation_granule, search)));
  std::vector<extent *> out;
  ASSERT_EQ(one.take_pages(3, out), 3u);
  const std::uint64_t here = out.at(0)->begin;
  const auto e = other.carve(3 * map_page, allocation_granule, search);
  one.expect_aliases(3);
  one.add_alias(out[0], e->missing.begin.value(), other);
  other.release(other.commit(*e));
  consistent();
  EXPECT_EQ(one.aliased_bytes(), 3 * map_page);
  EXPECT_FALSE(one.contains(one.owner_of(here)));
  EXPECT_TRUE(one.has_aliases_of(other));
  EXPECT_FALSE(other.has_aliases_of(one));

  // Two return.
  for (extent_map *m : {&one, &other}) m->expect_recalls(1);
  one.recall_from(other, other.set_aside({device_address(elsewhere + map_page), 2 * map_page}),
                  here + map_page);
  consistent();
  EXPECT_EQ(one.aliased_bytes(), map_page);
  EXPECT_EQ(other.aliased_bytes(), 2 * map_page);
  EXPECT_EQ(other.owner_of(elsewhere + 2 * map_page), here + 2 * map_page);
  EXPECT_TRUE(other.has_aliases_of(one));

  // The other gives its aliases up, and later gets the pages again, at other addresses.
  out.clear();
  other.drop_aliases(out);
  for (extent *s : out) other.unmapped(s);
  consistent();
  EXPECT_FALSE(other.has_aliases_of(one));
  EXPECT_TRUE(one.has_aliases_of(other));
  out.clear();
  const auto again = other.carve(4 * map_page, allocation_granule, search);  // it has one of them
  ASSERT_EQ(again->missing.bytes, 3 * map_page);
  ASSERT_EQ(one.take_pages(3, out), 3u);
  std::uint64_t to = again->missing.begin.value();
  one.expect_aliases(3);
  for (extent *s : out) {
    const std::uint64_t bytes = s->bytes;
    one.add_alias(s, to, other);
    to += bytes;
  }
  other.release(other.commit(*again));
  consistent();
  EXPECT_EQ(one.aliased_bytes(), 4 * map_page);
  for (std::uint64_t at = base; at < base + 4 * map_page; at += map_page) {
    EXPECT_TRUE(other.contains(one.owner_of(at)));
  }
}

TEST(extent_map, pages_can_be_aliased_again_after_their_aliases_were_dropped) {
  extent_map extents(map_page);
  extents.add({device_address(base), map_pages * map_page});
  const auto grow = [&](std::size_t n) {
    return extents.commit(
        *extents.carve(n * map_page, allocation_granule, extent_map::search::quick));
  };
  // All pages of `from` are free, and used in a block at new addresses instead.
  const auto move = [&](extent *from) {
    const std::size_t n = from->bytes / map_page;
    extents.release(from);
    std::vector<extent *> out;
    EXPECT_EQ(extents.take_pages(n, out), n);
    const auto e = extents.carve(n * map_page, allocation_granule, extent_map::search::quick);
    extents.expect_aliases(n);
    extents.add_alias(out.at(0), e->missing.begin.value(), extents);
    return extents.commit(*e);
  };
  extent *const first = grow(4);
  grow(1);  // keeps it apart from what follows
  extent *const second = move(first);
  std::vector<extent *> dropped;
  extents.drop_aliases(dropped);
  for (extent *s : dropped) extents.unmapped(s);
  ASSERT_EQ(extents.aliased_bytes(), 0u);

  extent *const other = grow(5);  // larger than the addresses at the base
  const std::uint64_t old_other = other->begin, old_second = second->begin;
  const extent *const moved_other = move(other);
  const extent *const moved_second = move(second);
  EXPECT_EQ(moved_second->begin, base) << "its pages were there before";
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(extents.owner_of(old_other + i * map_page), moved_other->begin + i * map_page);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(extents.owner_of(old_second + i * map_page), moved_second->begin + i * map_page);
  }
  EXPECT_EQ(extents.aliased_bytes(), 9 * map_page);
  EXPECT_EQ(extents.find_inconsistency(), "");
}

TEST(extent_map, committed_addresses_come_and_go_as_one) {
  extent_map extents(map_page);
  const virtual_range range{device_address(base), 4 * map_page};
  extents.add(range, true);
  EXPECT_EQ(extents.committed_bytes(), 4 * map_page);
  extent *const s = extents.place(map_page);
  ASSERT_NE(s, nullptr);
  EXPECT_FALSE(extents.remove(range)) << "something is live in it";
  extents.release(s);
  EXPECT_TRUE(extents.remove(range));
  EXPECT_EQ(extents.committed_bytes(), 0u);
  EXPECT_EQ(extents.reserved_bytes(), 0u);
  EXPECT_EQ(extents.place(map_page), nullptr);
}

TEST(extent_map, counts_the_host_memory_of_its_extents) {
  extent_map extents(map_page);
  extents.add({device_address(base), 64 * map_page}, true);
  const std::size_t before = extents.host_bytes();
  constexpr std::size_t placed = 1000;
  for (std::size_t i = 0; i < placed; ++i) {
    ASSERT_NE(extents.place(allocation_granule), nullptr);
  }
  EXPECT_GE(extents.host_bytes(), before + (placed - 16) * sizeof(extent));
  EXPECT_LE(extents.host_bytes(), before + 4 * placed * sizeof(extent));
}

// Small and large blocks have addresses of their own.
TEST(extent_map, a_zone_is_not_used_by_blocks_of_another) {
  extent_map extents(map_page);
  extents.add({device_address(base), 8 * map_page}, true);
  extents.add({device_address(base + 64 * map_page), 8 * map_page}, true, address_zone::small);
  const auto place = [&](std::uint64_t bytes, address_zone zone) {
    return extents.place(bytes, allocation_granule, zone);
  };
  EXPECT_EQ(place(map_page / 2, address_zone::small)->begin, base + 64 * map_page);
  EXPECT_EQ(place(map_page / 2, address_zone::large)->begin, base);
  EXPECT_NE(place(7 * map_page, address_zone::large), nullptr);
  EXPECT_EQ(place(map_page, address_zone::large), nullptr);
  EXPECT_NE(place(map_page, address_zone::small), nullptr);
  EXPECT_FALSE(extents.carve(map_page, allocation_granule, extent_map::search::thorough,
                             address_zone::large));
  EXPECT_EQ(extents.reserved_bytes(address_zone::small), 8 * map_page);
  EXPECT_EQ(extents.reserved_bytes(), 16 * map_page);
  EXPECT_EQ(extents.find_inconsistency(), "");
  std::vector<extent *> taken;
  EXPECT_EQ(extents.take_pages(20, taken), 6u) << "whole free pages of both";
  EXPECT_EQ(extents.find_inconsistency(), "");
}

}  // namespace
}  // namespace stillmap
