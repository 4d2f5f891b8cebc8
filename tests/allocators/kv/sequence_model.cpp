#include "tests/allocators/kv/sequence_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/allocators/kv/contents.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {

sequence_model::sequence_model(const device &d, const sequence_model_options &o, unsigned seed)
    : device_(d), options_(o), random_(seed), stream_(stream::create(d).value()) {
  auto made = kv::sequence_arena::create(d, {.shape = o.shape,
                                             .longest = o.longest,
                                             .sequences = o.sequences,
                                             .layers_per_range = o.layers_per_range,
                                             .spare_bytes = o.spare_bytes});
  EXPECT_TRUE(made) << made.error().message();
  if (made) arena_ = std::move(*made);
}

void sequence_model::run(std::size_t operations) {
  if (!arena_) return;
  for (std::size_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    operate();
    ASSERT_EQ(arena_->stats().sequences, live_.size());
    if (i % 256 == 0) check_contents();
  }
  check_contents();
}

void sequence_model::operate() {
  if (live_.empty()) return add();
  const std::size_t i = random_() % live_.size();
  sequence &s = live_[i];
  switch (random_() % 16) {
    case 0:
    case 1:
      return add();
    case 2:
    case 3:
      return fork();
    case 4:
    case 5:
    case 6:
    case 7: {
      s.wanted = std::min(options_.longest, s.tokens.size() + random_() % 40);
      ASSERT_DONE(arena_->reserve(s.id, s.wanted));
      ASSERT_FALSE(arena_->reserve(s.id, options_.longest + 1));
      return;
    }
    case 8:
    case 9:
    case 10:
      return write(s);
    case 11:
      return shrink(s);
    case 12:
      return remove(i);
    default:
      return step();
  }
}

void sequence_model::step() {
  ASSERT_DONE(arena_->prepare(stream_));
  ASSERT_DONE(arena_->begin_step(stream_));
  ASSERT_DONE(stream_.synchronize());  // the copies of forks
  for (sequence &s : live_) {
    s.begun = true;
    ASSERT_GE(arena_->capacity(s.id), std::max(s.wanted, s.tokens.size()));
  }
}

void sequence_model::add() {
  const auto made = arena_->add();
  if (!made) {
    ASSERT_TRUE(made.error().is(errc::address_space_exhausted)) << made.error().message();
    return;
  }
  live_.push_back({*made, {}, 0, 0, true});
}

void sequence_model::fork() {
  const std::size_t i = random_() % live_.size();
  const std::size_t capacity = arena_->capacity(live_[i].id);
  ASSERT_FALSE(arena_->fork(live_[i].id, capacity + 1));
  if (!live_[i].begun) return;  // its copies are not made
  const std::size_t tokens = live_[i].tokens.empty() ? 0 : random_() % (live_[i].tokens.size() + 1);
  const auto made = arena_->fork(live_[i].id, tokens);
  if (!made) {
    ASSERT_TRUE(made.error().is(errc::address_space_exhausted)) << made.error().message();
    return;
  }
  sequence child{*made, live_[i].tokens, tokens, tokens, false};
  child.tokens.resize(tokens);
  live_[i].shared = std::max(live_[i].shared, tokens);
  live_.push_back(std::move(child));
}

// Tokens after those that it has, as far as there is memory.
void sequence_model::write(sequence &s) {
  if (!s.begun) return;
  const std::size_t end = std::min(arena_->capacity(s.id), s.tokens.size() + random_() % 30);
  while (s.tokens.size() < end) {
    s.tokens.push_back(next_value_++);
    if (!options_.contents) continue;
    for_each_tensor(s, s.tokens.size() - 1, [&](device_address at, std::uint64_t word) {
      fill_part(at, arena_->layout().block_bytes(), word);
    });
  }
}

void sequence_model::shrink(sequence &s) {
  const std::size_t keep = random_() % (s.tokens.size() + 1);
  const status done = arena_->release_beyond(s.id, keep);
  if (!done) {
    ASSERT_TRUE(done.error().is(errc::busy)) << done.error().message();
    return;
  }
  s.shared = std::min(s.shared, keep);
  s.tokens.resize(keep);
  s.wanted = std::min(s.wanted, keep);
}

void sequence_model::remove(std::size_t i) {
  ASSERT_DONE(arena_->remove(live_[i].id));
  ASSERT_FALSE(arena_->remove(live_[i].id));
  ASSERT_FALSE(arena_->reserve(live_[i].id, 1));
  ASSERT_EQ(arena_->capacity(live_[i].id), 0u);
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
}

// Calls act(address, what the bytes there are made of) for each tensor of a token.
template <class Act>
void sequence_model::for_each_tensor(const sequence &s, std::size_t token, const Act &act) const {
  const kv::layout &l = arena_->layout();
  std::uint64_t word = s.tokens[token] << 16;
  for (std::uint32_t layer = 0; layer < l.shape().layers; ++layer) {
    for (std::uint32_t t = 0; t < l.shape().tensors; ++t) {
      act(arena_->tensor(s.id, layer, t) + token * l.block_stride(), word++);
    }
  }
}

void sequence_model::check_contents(const sequence &s) const {
  for (std::size_t t = 0; t < s.tokens.size(); ++t) {
    for_each_tensor(s, t, [&](device_address at, std::uint64_t word) {
      ASSERT_TRUE(holds_part(at, arena_->layout().block_bytes(), word))
          << "token " << t << " of " << s.tokens.size();
    });
  }
}

void sequence_model::check_contents() const {
  if (!options_.contents) return;
  for (const sequence &s : live_) {
    if (s.begun) check_contents(s);
  }
}

void sequence_model::end() {
  if (!arena_) return;
  check_contents();
  while (!live_.empty() && !::testing::Test::HasFailure()) remove(live_.size() - 1);
  ASSERT_DONE(arena_->prepare(stream_));
  ASSERT_DONE(arena_->begin_step(stream_));
  ASSERT_DONE(arena_->trim());
  const auto stats = arena_->stats();
  EXPECT_EQ(stats.mapped_bytes, 0u);
  EXPECT_EQ(stats.memory_bytes, 0u);
  EXPECT_EQ(stats.spare_bytes, 0u);
}

}  // namespace stillmap::testing
