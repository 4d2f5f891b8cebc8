#include "tests/allocators/kv/block_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/allocators/kv/contents.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {

using kv::block_id;

block_model::block_model(const device &d, const block_model_options &o, unsigned seed)
    : device_(d), options_(o), random_(seed), stream_(stream::create(d).value()) {
  auto made = kv::block_arena::create(d, {.shape = o.shape,
                                          .tokens_per_block = o.tokens_per_block,
                                          .blocks = o.blocks,
                                          .layers_per_range = o.layers_per_range,
                                          .spare_blocks = o.spare_blocks});
  EXPECT_TRUE(made) << made.error().message();
  if (made) arena_ = std::move(*made);
}

void block_model::run(std::size_t operations) {
  if (!arena_) return;
  for (std::size_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    operate();
    check_counts();
    if (i % 64 == 0) check_refusals();
    if (i % 512 == 0) check_contents();
  }
  check_contents();
}

void block_model::operate() {
  const std::vector<block_id> used = with(true, false), cached = with(false, true);
  switch (random_() % 16) {
    case 0:
    case 1:
      return step(random_() % (options_.blocks / 4 + 1));
    case 2:
    case 3:
    case 4:
    case 5:
      return allocate();
    case 6:
    case 7: {
      if (live_.empty()) return;
      const block_id b = any(with(true, true));
      const block_id twice[] = {b, b};
      ASSERT_DONE(arena_->retain(twice));
      live_[b].references += 2;
      live_[b].cached = false;
      return;
    }
    case 8:
    case 9:
    case 10:
    case 11:
    case 12: {
      if (used.empty()) return;
      std::vector<block_id> gone{any(used), any(used), any(used)};
      const bool keep = random_() % 3 == 0;
      // Some may be named more often than they have references: nothing of it is done then.
      std::map<block_id, std::uint32_t> times;
      bool possible = true;
      for (const block_id b : gone) possible = ++times[b] <= live_[b].references && possible;
      const status done = arena_->release(
          gone, keep ? kv::block_arena::contents::keep : kv::block_arena::contents::drop);
      ASSERT_EQ(done.has_value(), possible);
      if (!possible) return;
      for (const auto &[b, n] : times) {
        if ((live_[b].references -= n) != 0) continue;
        if (keep) {
          live_[b].cached = true;
        } else {
          live_.erase(b);
        }
      }
      return;
    }
    case 13: {
      if (cached.empty()) return;
      const block_id b = any(cached);
      ASSERT_DONE(arena_->drop({&b, 1}));
      live_.erase(b);
      return;
    }
    case 14:
      return evict();
    default:
      return random_() % 8 == 0 ? compact() : step(0);
  }
}

// For anybody, or for sequences.
void block_model::step(std::size_t free_blocks) {
  wanted_ = free_blocks;
  if (random_() % 2 == 0) {
    ASSERT_DONE(arena_->prepare(free_blocks, stream_));
  } else {
    const std::vector<block_id> used = with(true, false);
    std::vector<kv::growth> growths;
    for (std::size_t left = free_blocks; left != 0; left -= growths.back().blocks) {
      growths.push_back({.blocks = 1 + random_() % std::min<std::size_t>(left, 6)});
      if (!used.empty() && random_() % 2 == 0) growths.back().after = any(used);
    }
    ASSERT_DONE(arena_->prepare(growths, stream_));
  }
  if (random_() % 4 == 0) return;  // the worker runs beside the next operations
  ASSERT_DONE(arena_->begin_step());
  const auto stats = arena_->stats();
  const std::size_t free = options_.blocks - live_.size();
  ASSERT_GE(stats.free, std::min(free_blocks, free));
}

void block_model::allocate() {
  const std::size_t before = arena_->stats().free;
  std::vector<block_id> got(random_() % 24);
  std::optional<block_id> after;
  if (const auto used = with(true, false); !used.empty() && random_() % 2 == 0) after = any(used);
  const status done = arena_->allocate(got, after);
  ASSERT_EQ(done.has_value(), got.size() <= before);
  if (!done) {
    ASSERT_TRUE(done.error().is(errc::out_of_memory)) << done.error().message();
    return;
  }
  for (const block_id b : got) {
    ASSERT_LT(b, options_.blocks);
    ASSERT_FALSE(live_.contains(b)) << "block " << b << " was given out twice";
    live_[b] = {1, false, next_value_};
    write(b, next_value_++);
  }
}

void block_model::compact() {
  const auto before = arena_->occupancy();
  const std::size_t most = random_() % 40;
  const auto moves = arena_->compact(most, stream_);
  ASSERT_DONE(moves);
  ASSERT_DONE(stream_.synchronize());
  ASSERT_LE(moves->size(), most);
  std::set<block_id> emptied;
  for (const kv::block_move m : *moves) {
    ASSERT_TRUE(live_.contains(m.from));
    ASSERT_FALSE(live_.contains(m.to));
    live_[m.to] = live_[m.from];
    live_.erase(m.from);
    emptied.insert(m.from);
  }
  // What it moved from is free as a whole.
  for (const kv::cell_occupancy &c : before) {
    const auto first = emptied.lower_bound(c.first);
    if (first == emptied.end() || *first >= c.first + c.blocks) continue;
    ASSERT_EQ(live_.lower_bound(c.first), live_.lower_bound(c.first + c.blocks));
  }
}

void block_model::evict() {
  const std::size_t wanted = random_() % 6, cached = with(false, true).size();
  std::vector<block_id> evicted;
  ASSERT_DONE(arena_->evict(wanted, evicted));
  ASSERT_GE(evicted.size(), std::min(wanted, cached));
  for (const block_id b : evicted) {
    ASSERT_TRUE(live_.contains(b) && live_[b].cached);
    live_.erase(b);
  }
}

// What is refused changes nothing.
void block_model::check_refusals() {
  const auto beyond = static_cast<block_id>(options_.blocks);
  std::vector<block_id> wrong;
  if (!live_.empty()) wrong.push_back(live_.begin()->first);
  wrong.push_back(beyond);
  ASSERT_FALSE(arena_->retain(wrong));
  ASSERT_FALSE(arena_->release(wrong));
  ASSERT_FALSE(arena_->drop(wrong));
  check_counts();
}

void block_model::check_counts() {
  const auto stats = arena_->stats();
  const auto cached = static_cast<std::size_t>(std::count_if(
      live_.begin(), live_.end(), [](const auto &entry) { return entry.second.cached; }));
  ASSERT_EQ(stats.cached, cached);
  ASSERT_EQ(stats.used, live_.size() - cached);
}

std::vector<block_id> block_model::with(bool used, bool cached) const {
  std::vector<block_id> found;
  for (const auto &[b, state] : live_) {
    if (state.cached ? cached : used) found.push_back(b);
  }
  return found;
}

namespace {

// Calls act(address, what the bytes there are made of) for each tensor of a block.
template <class Act>
void for_each_tensor(const kv::block_arena &a, block_id b, std::uint64_t value, const Act &act) {
  const kv::layout &l = a.layout();
  std::uint64_t word = value << 16;
  for (std::uint32_t layer = 0; layer < l.shape().layers; ++layer) {
    for (std::uint32_t t = 0; t < l.shape().tensors; ++t) {
      act(a.tensor(layer, t) + b * l.block_stride(), word++);
    }
  }
}

}  // namespace

void block_model::write(block_id b, std::uint64_t value) {
  if (!options_.contents) return;
  for_each_tensor(*arena_, b, value, [&](device_address at, std::uint64_t word) {
    fill_part(at, arena_->layout().block_bytes(), word);
  });
}

void block_model::check_contents(block_id b) {
  for_each_tensor(*arena_, b, live_[b].value, [&](device_address at, std::uint64_t word) {
    ASSERT_TRUE(holds_part(at, arena_->layout().block_bytes(), word)) << "block " << b;
  });
}

void block_model::check_contents() {
  if (!options_.contents) return;
  for (const auto &entry : live_) check_contents(entry.first);
}

void block_model::end() {
  if (!arena_) return;
  check_contents();
  for (const auto &[b, state] : live_) {
    if (state.cached) {
      ASSERT_DONE(arena_->drop({&b, 1}));
      continue;
    }
    for (std::uint32_t n = 0; n < state.references; ++n) ASSERT_DONE(arena_->release({&b, 1}));
  }
  live_.clear();
  check_counts();
  ASSERT_DONE(arena_->trim());
  ASSERT_DONE(arena_->begin_step());
  EXPECT_EQ(arena_->stats().mapped_bytes, 0u);
  EXPECT_EQ(arena_->stats().free, 0u);
}

}  // namespace stillmap::testing
