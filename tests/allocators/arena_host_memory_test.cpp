// An arena without a device whose host allocations fail: random requests, each with some allocation
// that fails. The extents stay consistent, no block is lost, and blocks are always freed.
#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "stillmap/allocators/engine/arena.h"
#include "tests/support/effort.h"
#include "tests/support/host_memory.h"

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wthread-safety"  // one thread, which takes no lock
#endif

namespace stillmap {
namespace {

using testing::fail_host_allocation;

constexpr std::size_t starved_page = std::size_t{64} << 10;
constexpr std::uint64_t starved_base = 0x10000000;

class starved_arena {
 public:
  explicit starved_arena(std::uint64_t seed) : seed_(seed), random_(seed) {
    arena_.extents().add({device_address(starved_base), 4096 * starved_page});
  }

  void step() {
    // The pattern, which knows better, undoes it now and then.
    if (seed_ % 2 == 0 && random_() % 8 == 0) arena_.set_repeats(true);
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        return allocate();
      case 3:
        return alias();
      case 4:
        return use();
      case 5:
        return take();
      default:
        return free();
    }
  }
  std::string wrong() const {
    if (std::string found = arena_.extents().find_inconsistency(); !found.empty()) return found;
    std::size_t live = 0;
    for (const auto &[at, bytes] : blocks_) live += bytes;
    if (arena_.blocks().counters().live != live) return "the live bytes";
    if (arena_.blocks().counters().allocations - arena_.blocks().counters().frees != blocks_.size())
      return "the blocks";
    for (const auto &[at, bytes] : blocks_) {
      if (arena_.blocks().usable_size(at) != bytes) return "a block is lost";
    }
    return "";
  }
  void free_all() {
    while (!blocks_.empty()) free();
    complete();
    arena_.blocks().flush();
  }
  std::size_t committed() const { return arena_.extents().committed_bytes(); }
  std::size_t free_bytes() const { return arena_.extents().free_bytes(); }
  std::uint64_t failed = 0;

 private:
  // Makes act() with an allocation that fails. False: it ran out.
  template <class Act>
  bool starved(Act act) {
    const fail_host_allocation failing(random_() % 3 == 0 ? random_() % 8 : 0, random_() % 2 == 0);
    bool done = true;
    try {
      act();
    } catch (const std::bad_alloc &) {
      done = false;
    }
    if (failing.happened() && !done) ++failed;
    return done;
  }

  void allocate() {
    block_request r;
    const std::uint64_t granules =
        random_() % 2 == 0 ? 1 + random_() % 16 : 1 + random_() % (random_() % 8 == 0 ? 2000 : 300);
    r.bytes = granules * allocation_granule;
    if (random_() % 16 == 0) r.alignment = starved_page;
    void *block = nullptr;
    for (int attempt = 0; block == nullptr && attempt < 2; ++attempt) {
      const bool starve = attempt == 0;
      const auto serve = [&] {
        block = arena_.allocate(r);
        if (block == nullptr) block = grow(r, starve);
      };
      starve ? static_cast<void>(starved(serve)) : serve();
      ASSERT_EQ(arena_.extents().find_inconsistency(), "");
    }
    ASSERT_NE(block, nullptr);
    const auto at = reinterpret_cast<std::uintptr_t>(block);
    const auto above = blocks_.lower_bound(at);
    ASSERT_TRUE(above == blocks_.end() || at + r.bytes <= above->first);
    ASSERT_TRUE(above == blocks_.begin() ||
                std::prev(above)->first + std::prev(above)->second <= at);
    blocks_[at] = r.bytes;
  }
  // As page_source does: what is mapped is never in doubt.
  void *grow(const block_request &r, bool may_fail) {
    const block_request wanted = r.extent_request();
    const auto place =
        arena_.extents().carve(wanted.bytes, wanted.alignment, extent_map::search::thorough);
    if (!place) return nullptr;
    if (may_fail && random_() % 8 == 0) {
      arena_.extents().abandon(*place);
      return nullptr;
    }
    extent *const s = arena_.extents().commit(*place);
    return r.small() ? arena_.blocks().enter_slab(s, r) : arena_.blocks().enter(s, r);
  }
  // Pages of free memory move to another address.
  void alias() {
    std::vector<extent *> taken;
    starved([&] { arena_.extents().take_pages(1 + random_() % 4, taken); });
    for (extent *s : taken) {
      const std::uint64_t bytes = s->bytes;
      std::optional<extent_map::carved_extent> place;
      starved([&] {
        arena_.extents().expect_aliases(bytes / starved_page);
        place = arena_.extents().carve(bytes, starved_page, extent_map::search::thorough);
      });
      if (!place || place->missing.bytes != bytes) {
        if (place) arena_.extents().abandon(*place);
        arena_.extents().put_back(s);
        continue;
      }
      arena_.extents().add_alias(s, place->missing.begin.value(), arena_.extents());
      arena_.extents().release(arena_.extents().commit(*place));
    }
  }
  void take() {
    std::vector<extent *> taken;
    if (random_() % 4 == 0) {
      starved([&] { arena_.extents().drop_aliases(taken); });
      for (extent *s : taken) arena_.extents().unmapped(s);
      return;
    }
    starved([&] { arena_.extents().take_pages(1 + random_() % 4, taken); });
    // Pages that leave must not be aliased.
    const bool leave = arena_.extents().aliased_bytes() == 0 && random_() % 2 == 0;
    for (extent *s : taken) leave ? arena_.extents().unmapped(s) : arena_.extents().put_back(s);
  }
  std::uint64_t any_block() {
    return std::next(blocks_.begin(), static_cast<long>(random_() % blocks_.size()))->first;
  }
  void use() {
    if (blocks_.empty()) return;
    const std::uint64_t at = any_block();
    const auto other = reinterpret_cast<stream_handle>(1 + random_() % 3);
    starved([&] { EXPECT_TRUE(arena_.record_use(at, other)); });
    EXPECT_TRUE(arena_.record_use(at, other));
  }
  // Frees need no host memory.
  void free() {
    if (blocks_.empty()) return;
    const std::uint64_t at = any_block();
    const fail_host_allocation failing(0, true);
    const free_outcome outcome = arena_.blocks().free(at);
    EXPECT_NE(outcome, free_outcome::not_ours);
    if (outcome == free_outcome::needs_event) {
      arena_.blocks().uses.queue.push_back(arena_.blocks().defer_free(at));
      if (random_() % 4 == 0) complete();
    }
    blocks_.erase(at);
  }
  // The other streams pass.
  void complete() {
    pending_list due;
    due.append(arena_.blocks().uses.queue);
    while (!due.empty() && pending_.add(due.front())) due.pop_front();
    due.append(arena_.blocks().uses.queue);
    arena_.blocks().uses.queue.append(due);
    pending_.collect([](stream_use &) { return true; },
                     [&](const pending_block &b) { arena_.blocks().complete_free(b.address); });
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  arena arena_{1, {}, starved_page};
  pending_frees pending_;
  std::map<std::uint64_t, std::size_t> blocks_;
};

TEST(arena_host_memory, random_requests_run_out_of_it) {
  std::uint64_t failed = 0;
  for (std::uint64_t seed = 1; seed <= (testing::sanitizer().empty() ? 15 : 4); ++seed) {
    // On the heap: GCC's address sanitizer misaligns an object of 64-byte alignment on the stack.
    const auto on_heap = std::make_unique<starved_arena>(seed);
    starved_arena &a = *on_heap;
    for (int i = 0; i < 800; ++i) {
      a.step();
      const std::string wrong = i % 8 == 0 ? a.wrong() : "";
      ASSERT_EQ(wrong, "") << "seed " << seed << ", step " << i;
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << ", step " << i;
    }
    a.free_all();
    EXPECT_EQ(a.wrong(), "");
    EXPECT_EQ(a.free_bytes(), a.committed()) << "memory is lost";
    failed += a.failed;
  }
  EXPECT_GT(failed, 100u);
}

TEST(arena_host_memory, a_block_whose_place_cannot_be_remembered_is_served) {
  const auto on_heap = std::make_unique<arena>(1, stream_ref(), starved_page);
  arena &a = *on_heap;
  a.extents().add({device_address(starved_base), 64 * starved_page}, true);
  const block_request r{4 * starved_page, allocation_granule, 0};
  const block_request other{2 * starved_page, allocation_granule, 0};
  // The other tables have room then.
  EXPECT_EQ(a.blocks().free(reinterpret_cast<std::uintptr_t>(a.allocate(r))), free_outcome::done);
  a.set_repeats(true);
  for (const block_request &one : {r, other}) {
    void *block = nullptr;
    {
      const fail_host_allocation failing(0, true);
      block = a.allocate(one);
      EXPECT_TRUE(failing.happened());
    }
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(a.blocks().free(reinterpret_cast<std::uintptr_t>(block)), free_outcome::done);
  }
  void *const block = a.allocate(r);
  EXPECT_NE(block, nullptr);
  EXPECT_EQ(a.extents().find_inconsistency(), "");
}

}  // namespace
}  // namespace stillmap

#ifdef __clang__
#pragma clang diagnostic pop
#endif
