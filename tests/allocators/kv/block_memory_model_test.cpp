// block_memory beside a naive model: what is wanted, what may be used, and what its bytes must be.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "stillmap/allocators/kv/block_memory.h"
#include "stillmap/vmm/context.h"
#include "tests/allocators/kv/contents.h"
#include "tests/allocators/kv/operations.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap::testing {
namespace {

struct memory_model_options {
  kv::shape shape{};
  std::size_t tokens_per_block = 1, blocks = 1;
  std::uint32_t layers_per_range = 0;
  bool contents = true;  // writes and checks every byte
};

class memory_model {
 public:
  memory_model(const device &d, const memory_model_options &o, unsigned seed)
      : device_(d), options_(o), random_(seed), stream_(stream::create(d).value()) {
    auto made = kv::block_memory::create(d, {.shape = o.shape,
                                             .tokens_per_block = o.tokens_per_block,
                                             .blocks = o.blocks,
                                             .layers_per_range = o.layers_per_range});
    EXPECT_TRUE(made) << made.error().message();
    if (made) memory_ = std::move(*made);
  }

  void run(std::size_t operations) {
    if (!memory_) return;
    for (std::size_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE("operation " + std::to_string(i));
      operate();
      check_counts();
      if (i % 64 == 0) check_all();
    }
  }
  void end() {
    if (!memory_) return;
    check_all();
    ASSERT_DONE(memory_->decommit(0, options_.blocks));
    ASSERT_DONE(memory_->trim());
    wanted_.clear();
    values_.clear();
    check_all();
    EXPECT_EQ(memory_->stats().mapped_bytes, 0u);
  }

 private:
  void operate() {
    const std::size_t first = random_() % options_.blocks;
    const std::size_t count =
        random_() % std::min<std::size_t>(options_.blocks - first + 1, random_() % 4 == 0 ? 99 : 9);
    switch (random_() % 13) {
      case 0:
      case 1:
      case 2:
      case 3:
        ASSERT_DONE(memory_->commit(first, count));
        for (std::size_t b = first; b < first + count; ++b) wanted_.insert(b);
        return take_committed(false);
      case 4:
      case 5:
      case 6:
      case 7:
        check_contents(first, count);
        return decommit(first, count);
      case 8:
        return decommit_in_use(first, count);
      case 9:  // the worker runs beside the next operations
        ASSERT_DONE(memory_->prepare(stream_));
        return;
      case 10:
        ASSERT_DONE(memory_->begin_step());
        return take_committed(false);
      case 11:
        if (random_() % 8 == 0) return trim();
        [[fallthrough]];
      default:
        ASSERT_DONE(memory_->prepare(stream_));
        ASSERT_DONE(memory_->begin_step());
        return take_committed(true);
    }
  }

  void decommit(std::size_t first, std::size_t count) {
    ASSERT_DONE(memory_->decommit(first, count));
    wanted_.erase(wanted_.lower_bound(first), wanted_.lower_bound(first + count));
    values_.erase(values_.lower_bound(first), values_.lower_bound(first + count));
  }

  // While the stream still writes to the blocks. hostcuda's oracle tells of pages that are taken away meanwhile.
  void decommit_in_use(std::size_t first, std::size_t count) {
    hold(stream_.get());
    {
      const context_guard guard(device_.driver(), device_.context());
      for (auto i = values_.lower_bound(first); i != values_.end() && i->first < first + count;
           ++i) {
        for (std::uint32_t layer = 0; layer < options_.shape.layers; ++layer) {
          const kv::layout &l = memory_->layout();
          EXPECT_TRUE(device_.driver().set_bytes_async(
              memory_->tensor(layer, 0) + i->first * l.block_stride(), 1, l.block_bytes(),
              stream_.get()));
        }
      }
    }
    decommit(first, count);
    const status prepared = memory_->prepare(stream_);
    release(stream_.get());
    ASSERT_DONE(prepared);
    ASSERT_DONE(memory_->begin_step());
    ASSERT_DONE(stream_.synchronize());
    take_committed(true);
  }

  void trim() {
    ASSERT_DONE(memory_->trim());
    take_committed(true);
    std::set<std::size_t> groups;
    for (const std::size_t b : wanted_) {
      const kv::page_span pages = memory_->layout().pages_of(b, 1);
      for (std::size_t g = pages.first; g < pages.end(); ++g) groups.insert(g);
    }
    ASSERT_EQ(memory_->stats().mapped_bytes, groups.size() * memory_->layout().group_bytes());
  }

  // Blocks that may be used now are written; all that are wanted, if `all` must be.
  void take_committed(bool all) {
    for (const std::size_t b : wanted_) {
      const bool is = memory_->is_committed(b);
      ASSERT_TRUE(is || !all) << "block " << b << " has no memory";
      ASSERT_TRUE(is || !values_.contains(b)) << "block " << b << " has lost its memory";
      if (!is || values_.contains(b)) continue;
      values_[b] = next_value_;
      for_each_tensor(b, next_value_++, [&](device_address at, std::uint64_t word) {
        fill_part(at, memory_->layout().block_bytes(), word);
      });
    }
  }

  template <class Act>
  void for_each_tensor(std::size_t b, std::uint64_t value, const Act &act) {
    if (!options_.contents) return;
    const kv::layout &l = memory_->layout();
    std::uint64_t word = value << 16;
    for (std::uint32_t layer = 0; layer < l.shape().layers; ++layer) {
      for (std::uint32_t t = 0; t < l.shape().tensors; ++t) {
        act(memory_->tensor(layer, t) + b * l.block_stride(), word++);
      }
    }
  }
  void check_contents(std::size_t first, std::size_t count) {
    for (auto i = values_.lower_bound(first); i != values_.end() && i->first < first + count; ++i) {
      for_each_tensor(i->first, i->second, [&](device_address at, std::uint64_t word) {
        ASSERT_TRUE(holds_part(at, memory_->layout().block_bytes(), word)) << "block " << i->first;
      });
    }
  }
  void check_counts() {
    const auto stats = memory_->stats();
    ASSERT_EQ(stats.committed, values_.size());
    ASSERT_EQ(stats.pending, wanted_.size() - values_.size());
    const std::size_t beyond = options_.blocks + 1 - random_() % 3;
    ASSERT_EQ(memory_->commit(beyond, 0).has_value(), beyond <= options_.blocks);
    ASSERT_FALSE(memory_->decommit(beyond, 2));
  }
  void check_all() {
    check_contents(0, options_.blocks);
    std::map<std::size_t, std::uint64_t> committed;
    for (const auto &[first, count] : memory_->committed_ranges()) {
      ASSERT_TRUE(memory_->is_committed(first, count));
      ASSERT_FALSE(memory_->is_committed(first, count + 1));
      for (std::size_t b = first; b < first + count; ++b) committed[b];
    }
    ASSERT_TRUE(std::equal(committed.begin(), committed.end(), values_.begin(), values_.end(),
                           [](const auto &a, const auto &b) { return a.first == b.first; }));
  }

  const device device_;
  const memory_model_options options_;
  std::mt19937_64 random_;
  stream stream_;
  std::unique_ptr<kv::block_memory> memory_;
  std::set<std::size_t> wanted_;                 // committed or pending
  std::map<std::size_t, std::uint64_t> values_;  // what the bytes of committed blocks were made of
  std::uint64_t next_value_ = 1;
};

class kv_block_memory_model : public buffer_test {
 protected:
  void try_all(const memory_model_options &o, std::size_t operations) {
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
    for (unsigned seed = 1; seed <= 3 && !HasFailure(); ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      memory_model m(dev(), o, seed);
      m.run(some_of(operations));
      m.end();
    }
  }
};

// Four blocks in a page, two ranges.
TEST_F(kv_block_memory_model, blocks_smaller_than_a_page) {
  try_all(
      {.shape = {4, 2, page() / 64}, .tokens_per_block = 4, .blocks = 100, .layers_per_range = 2},
      2000);
}

// Blocks of 3/8 of a page: some lie in two.
TEST_F(kv_block_memory_model, blocks_that_cross_pages) {
  try_all(
      {.shape = {3, 1, page() / 32}, .tokens_per_block = 4, .blocks = 61, .layers_per_range = 3},
      2000);
}

// Blocks of 2.5 pages: their neighbours share pages.
TEST_F(kv_block_memory_model, blocks_larger_than_a_page) {
  try_all(
      {.shape = {5, 2, page() / 64}, .tokens_per_block = 16, .blocks = 23, .layers_per_range = 5},
      600);
}

// Many operations; what blocks hold is checked by the others.
TEST_F(kv_block_memory_model, many_operations) {
  try_all({.shape = {4, 2, page() / 256},
           .tokens_per_block = 4,
           .blocks = 400,
           .layers_per_range = 1,
           .contents = false},
          10000);
}

}  // namespace
}  // namespace stillmap::testing
