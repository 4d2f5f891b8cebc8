// Placement without a driver: random operations against a model that keeps one byte per granule.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <vector>

#include "stillmap/allocators/internal/extent_map.h"

namespace stillmap {
namespace {

constexpr std::size_t page = 16 * allocation_granule;
constexpr std::uint64_t base = 0x10000000;
constexpr std::size_t pages = 64;

// What each granule is, written down by whoever did it.
class naive {
 public:
  enum kind : char { unbacked = '-', free = '.', live = '#', leaving = '>' };
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
    for (std::size_t p = 0; p < pages; ++p) n += all(base + p * page, page, free);
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
  std::vector<char> cells_ = std::vector<char>(pages * page / allocation_granule, unbacked);
};

std::string drawn(const extent_map &books) {
  std::string out;
  books.each([&](const segment &s) {
    const char c = s.state == segment_state::unbacked ? '-'
                   : s.state == segment_state::free   ? '.'
                   : s.state == segment_state::live   ? '#'
                                                      : '>';
    out.append(s.bytes / allocation_granule, c);
  });
  return out;
}

class heap_books_model : public ::testing::TestWithParam<unsigned> {};

TEST_P(heap_books_model, agrees_with_a_byte_per_granule) {
  std::mt19937 random(GetParam());
  const auto below = [&](std::size_t n) { return random() % n; };
  extent_map books(page);
  books.add({device_address(base), pages * page});
  naive model;
  std::map<std::uint64_t, segment *> blocks;
  std::vector<segment *> leaving;
  std::size_t carved = 0, abandoned = 0, placed = 0, taken = 0;

  for (int step = 0; step < 4000; ++step) {
    switch (below(8)) {
      case 0:
      case 1:
      case 2:
      case 3: {  // allocate
        const std::uint64_t bytes = (1 + below(below(4) == 0 ? 100 : 20)) * allocation_granule;
        const std::uint64_t alignment = allocation_granule << (below(3) == 0 ? below(6) : 0);
        segment *s = books.place(bytes, alignment);
        if (s == nullptr) {
          if (alignment == allocation_granule) {
            ASSERT_LT(model.longest("."), bytes) << "it would have fitted";
          }
          const auto e =
              books.carve(bytes, alignment,
                          below(2) ? extent_map::search::quick : extent_map::search::thorough);
          if (!e) {
            if (alignment == allocation_granule) {
              ASSERT_LT(model.longest("-"), bytes) << "there were addresses";
            }
            break;
          }
          ASSERT_EQ(books.contradiction(true), "");
          ASSERT_TRUE(model.all(e->missing.begin.value(), e->missing.bytes, naive::unbacked));
          ASSERT_EQ(e->missing.begin.value() % page, 0u);
          if (below(3) == 0) {
            books.abandon(*e);
            ++abandoned;
            break;
          }
          s = books.commit(*e);
          model.set(e->missing.begin.value(), e->missing.bytes, naive::free);
          ++carved;
        } else {
          ++placed;
        }
        ASSERT_EQ(s->bytes, bytes);
        ASSERT_EQ(s->begin % alignment, 0u);
        ASSERT_TRUE(model.all(s->begin, s->bytes, naive::free)) << "not free, or not backed";
        model.set(s->begin, s->bytes, naive::live);
        blocks[s->begin] = s;
        break;
      }
      case 4:
      case 5: {  // free
        if (blocks.empty()) break;
        const auto it = std::next(blocks.begin(), static_cast<long>(below(blocks.size())));
        model.set(it->second->begin, it->second->bytes, naive::free);
        books.release(it->second);
        blocks.erase(it);
        break;
      }
      case 6: {  // pages go
        std::vector<segment *> out;
        const std::size_t wanted = 1 + below(12), there = model.whole_free_pages();
        const std::size_t n = books.take(wanted, out);
        ASSERT_EQ(n, std::min(wanted, there));
        for (segment *s : out) {
          ASSERT_TRUE(model.all(s->begin, s->bytes, naive::free));
          ASSERT_EQ(s->begin % page, 0u);
          model.set(s->begin, s->bytes, naive::leaving);
          leaving.push_back(s);
        }
        taken += n;
        break;
      }
      default: {  // and are gone, or stay after all
        if (leaving.empty()) break;
        const std::size_t i = below(leaving.size());
        segment *const s = leaving[i];
        leaving.erase(leaving.begin() + static_cast<long>(i));
        if (below(3) == 0) {
          model.set(s->begin, s->bytes, naive::free);
          books.put_back(s);
        } else {
          model.set(s->begin, s->bytes, naive::unbacked);
          books.gone(s);
        }
      }
    }
    ASSERT_EQ(books.contradiction(), "") << "step " << step;
    ASSERT_EQ(drawn(books), model.drawn()) << "step " << step;
    ASSERT_EQ(books.free_pages(), model.whole_free_pages());
    ASSERT_EQ(books.free_bytes(), model.count(naive::free));
    ASSERT_EQ(books.backed_bytes(), model.count(naive::free) + model.count(naive::live));
  }
  EXPECT_GT(carved, 20u);
  EXPECT_GT(abandoned, 10u);
  EXPECT_GT(placed, 50u);
  EXPECT_GT(taken, 20u);
}

INSTANTIATE_TEST_SUITE_P(seeds, heap_books_model, ::testing::Range(1u, 13u));

TEST(extent_map, neighbours_share_their_boundary_page) {
  extent_map books(page);
  books.add({device_address(base), pages * page});
  const auto first =
      books.carve(page + allocation_granule, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->missing.bytes, 2 * page);
  segment *const a = books.commit(*first);
  // The second begins in the page that the first has started, and needs two pages, not three.
  const auto second =
      books.carve(3 * page - 2 * allocation_granule, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->missing.bytes, 2 * page);
  segment *const b = books.commit(*second);
  EXPECT_EQ(b->begin, a->end());
  EXPECT_EQ(books.backed_bytes(), 4 * page);
  EXPECT_EQ(books.free_bytes(), allocation_granule);
}

TEST(extent_map, a_hole_between_free_neighbours_is_preferred_to_the_end) {
  extent_map books(page);
  books.add({device_address(base), pages * page});
  segment *blocks[3];
  for (segment *&b : blocks) {
    b = books.commit(*books.carve(8 * page, allocation_granule, extent_map::search::quick));
  }
  books.release(blocks[1]);
  std::vector<segment *> out;
  ASSERT_EQ(books.take(2, out), 2u);
  ASSERT_EQ(out.size(), 1u);
  books.gone(out[0]);
  const auto e = books.carve(8 * page, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->begin, base + 8 * page);
  EXPECT_EQ(e->missing.bytes, 2 * page);
  books.abandon(*e);
  EXPECT_EQ(books.contradiction(), "");
}

TEST(extent_map, a_block_of_whole_pages_begins_at_a_page) {
  extent_map books(page);
  books.add({device_address(base), pages * page}, true);
  segment *const odd = books.place(page / 2);
  ASSERT_EQ(odd->begin, base);
  EXPECT_EQ(books.place(2 * page)->begin, base + page);
  EXPECT_EQ(books.place(page + allocation_granule)->begin, base + 3 * page);
  EXPECT_EQ(books.contradiction(), "");
}

TEST(extent_map, a_block_goes_where_fewest_pages_are_broken) {
  extent_map books(page);
  books.add({device_address(base), pages * page}, true);
  // Free: two whole pages, and later one and a half with the other half of the first in use.
  segment *const first = books.place(2 * page);
  ASSERT_NE(books.place(page), nullptr);
  segment *const half = books.place(page / 2);
  segment *const second = books.place(page + page / 2);
  while (books.place(page, allocation_granule, extent_map::search::thorough) != nullptr) {
  }
  books.release(first);
  books.release(second);
  ASSERT_EQ(half->end(), second->begin);
  EXPECT_EQ(books.place(page + page / 4)->begin, base + 3 * page + page / 2) << "one, not two";
  EXPECT_EQ(books.contradiction(), "");
}

// The same choice, made by looking at every free segment and counting pages one by one.
const segment *best_of_all(const extent_map &books, std::uint64_t bytes) {
  const auto whole = [](std::uint64_t from, std::uint64_t to) {
    std::uint64_t n = 0;
    for (std::uint64_t at = from / page * page; at + page <= to; at += page) n += at >= from;
    return n;
  };
  const segment *best = nullptr;
  std::array<std::uint64_t, 3> lowest{};  // kind of fit, what it costs, where
  books.each([&](const segment &s) {
    const std::uint64_t step = bytes % page == 0 ? page : allocation_granule;
    const std::uint64_t at = (s.begin + step - 1) / step * step;
    if (s.state != segment_state::free || at + bytes > s.end()) return;
    const std::uint64_t broken =
        whole(s.begin, s.end()) - whole(s.begin, at) - whole(at + bytes, s.end());
    const std::uint64_t left = s.bytes - bytes;
    const std::array<std::uint64_t, 3> rank =
        left == 0                     ? std::array<std::uint64_t, 3>{0, 0, s.begin}
        : broken == 0 && left <= 4096 ? std::array<std::uint64_t, 3>{1, left, s.begin}
                                      : std::array<std::uint64_t, 3>{2, broken, s.begin};
    if (best != nullptr && lowest <= rank) return;
    best = &s;
    lowest = rank;
  });
  return best;
}

TEST(extent_map, the_place_that_is_chosen_is_the_best_of_all) {
  std::mt19937_64 random(7);
  const auto below = [&](std::uint64_t n) { return random() % n; };
  int exact = 0, compared = 0;
  for (int round = 0; round < 20; ++round) {
    extent_map books(page);
    books.add({device_address(base), pages * page}, true);
    std::vector<segment *> live;
    for (int i = 0; i < 400; ++i) {
      if (!live.empty() && below(5) < 2) {
        std::swap(live[below(live.size())], live.back());
        books.release(live.back());
        live.pop_back();
        continue;
      }
      const std::uint64_t bytes = (1 + below(1 + below(80))) * allocation_granule;
      const segment *const expected = best_of_all(books, bytes);
      if (expected == nullptr) continue;
      const virtual_range wanted = expected->range();
      segment *const s = books.place(bytes);
      ASSERT_NE(s, nullptr);
      ASSERT_TRUE(wanted.contains(s->range()));
      ++(wanted.bytes == bytes ? exact : compared);
      live.push_back(s);
    }
    ASSERT_EQ(books.contradiction(), "");
  }
  EXPECT_GT(exact, 100);
  EXPECT_GT(compared, 1000);
}

TEST(extent_map, a_place_takes_over_what_is_nobodys) {
  extent_map books(page);
  books.add({device_address(base), 8 * page}, true);
  segment *const low = books.place(page + page / 2);
  segment *const middle = books.place(page / 4);
  segment *const high = books.place(2 * page + page / 4);
  ASSERT_EQ(low->end(), middle->begin);
  ASSERT_EQ(middle->end(), high->begin);
  const std::uint64_t begin = base + page, bytes = 2 * page;
  segment *const s = books.place_at(low, begin, bytes);
  EXPECT_EQ(books.contradiction(), "");
  EXPECT_EQ(s->begin, begin);
  EXPECT_EQ(s->bytes, bytes);
  EXPECT_EQ(s->state, segment_state::live);
  EXPECT_EQ(books.free_bytes(), 6 * page) << "with what was cut off at both ends";
  EXPECT_EQ(books.at(base)->state, segment_state::free);
  EXPECT_EQ(books.at(begin + bytes)->end(), base + 8 * page);
}

TEST(extent_map, a_page_at_two_addresses_is_free_at_one) {
  extent_map books(page);
  books.add({device_address(base), pages * page});
  segment *const first =
      books.commit(*books.carve(4 * page, allocation_granule, extent_map::search::quick));
  segment *const guard =
      books.commit(*books.carve(page, allocation_granule, extent_map::search::quick));
  const std::uint64_t here = first->begin, there = guard->end();
  books.release(first);
  std::vector<segment *> out;
  ASSERT_EQ(books.take(4, out), 4u);
  const auto e = books.carve(4 * page, allocation_granule, extent_map::search::quick);
  ASSERT_TRUE(e);
  ASSERT_EQ(e->missing.begin.value(), there);
  books.lend(out[0], there);
  segment *const second = books.commit(*e);
  EXPECT_EQ(books.contradiction(), "");
  EXPECT_EQ(books.backed_bytes(), 5 * page);
  EXPECT_EQ(books.lent_bytes(), 4 * page);
  EXPECT_EQ(books.place(page), nullptr);
  EXPECT_EQ(books.at(here + 3 * page + 1)->state, segment_state::lent);
  EXPECT_EQ(books.owner_of(here + page), there + page);
  EXPECT_EQ(books.next_run(here + page, 3, 7).owner, there + page);
  EXPECT_EQ(books.next_run(here, 4, 7).pages, 1u) << "it was told of the others";
  EXPECT_EQ(books.next_run(here, 4, 8).pages, 4u);

  books.release(second);
  books.recall(here + page, 1);
  EXPECT_EQ(books.contradiction(), "");
  EXPECT_EQ(books.backed_bytes(), 5 * page);
  EXPECT_EQ(books.at(here + page)->state, segment_state::free);
  EXPECT_EQ(books.at(there + page)->state, segment_state::lent);
  EXPECT_EQ(books.owner_of(there + page), here + page);
  EXPECT_EQ(books.free_pages(), 4u);

  books.recall(there + page, 1);
  books.recall(here + page, 3);
  EXPECT_EQ(books.contradiction(), "");
  EXPECT_EQ(books.at(here + page), books.at(here + 3 * page));
  EXPECT_EQ(books.owner_of(there + 2 * page), here + 2 * page);
  EXPECT_EQ(books.owner_of(there), there);
  EXPECT_EQ(books.lent_bytes(), 4 * page);

  out.clear();
  books.forget_lent(out);
  std::size_t bytes = 0;
  for (segment *s : out) {
    bytes += s->bytes;
    books.gone(s);
  }
  EXPECT_EQ(bytes, 4 * page);
  EXPECT_EQ(books.contradiction(), "");
  EXPECT_EQ(books.backed_bytes(), 5 * page);
}

TEST(extent_map, backed_addresses_come_and_go_as_one) {
  extent_map books(page);
  const virtual_range range{device_address(base), 4 * page};
  books.add(range, true);
  EXPECT_EQ(books.backed_bytes(), 4 * page);
  segment *const s = books.place(page);
  ASSERT_NE(s, nullptr);
  EXPECT_FALSE(books.remove(range)) << "something is live in it";
  books.release(s);
  EXPECT_TRUE(books.remove(range));
  EXPECT_EQ(books.backed_bytes(), 0u);
  EXPECT_EQ(books.reserved_bytes(), 0u);
  EXPECT_EQ(books.place(page), nullptr);
}

}  // namespace
}  // namespace stillmap
