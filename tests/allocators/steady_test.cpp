// Loops that do the same again and again: once they have settled they make no driver call, and the
// memory held is little more than the memory in use at the peak.
#include <gtest/gtest.h>

#include <random>

#include "tests/allocators/checked_heap.h"
#include "tests/allocators/host_allocations.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::checked_heap;

class steady : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }
};

// Something like a training step: parameters stay; each layer's forward leaves activations and uses
// scratch, the backward frees them in reverse and makes gradients; the optimiser has temporaries.
class training {
 public:
  training(caching_allocator &heap, unsigned layers, std::size_t unit, unsigned seed)
      : heap_(heap), layers_(layers), unit_(unit), seed_(seed) {}

  void set_up(stream_ref s) {
    for (unsigned l = 0; l < layers_; ++l) {
      for (const std::size_t part : {12, 4, 1}) parameters_.push_back(take(part * unit_ / 3, s));
      parameters_.push_back(take(1000 + 8 * l, s));
    }
  }
  void step(stream_ref s) {
    std::vector<std::vector<void *>> activations(layers_);
    for (unsigned l = 0; l < layers_; ++l) {
      std::mt19937 random(seed_);  // all layers are alike
      for (int k = 0; k < 6; ++k) {
        void *const scratch = take(unit_ * (1 + random() % 7) + 512 * (random() % 9), s);
        activations[l].push_back(take(unit_ * (1 + random() % 5) / 2 + 100, s));
        activations[l].push_back(take(300 * (1 + random() % 40), s));
        give(scratch);
      }
    }
    std::vector<void *> gradients;
    std::mt19937 random(seed_);
    const std::size_t wide = 2 + random() % 9;
    for (unsigned l = layers_; l-- > 0;) {
      void *const scratch = take(unit_ * wide, s);
      gradients.push_back(take(17 * unit_ / 3, s));
      for (void *a : activations[l]) give(a);
      give(scratch);
    }
    for (void *g : gradients) {
      void *const temporary = take(17 * unit_ / 3, s);
      give(g);
      give(temporary);
    }
  }
  void tear_down() {
    for (void *p : parameters_) give(p);
  }
  std::size_t peak() const { return peak_; }
  std::uint64_t operations() const { return operations_; }

 private:
  void *take(std::size_t bytes, stream_ref s) {
    const auto got = heap_.allocate(bytes, s);
    if (!got) throw std::runtime_error(got.error().message());
    ++operations_;
    return *got;
  }
  void give(void *at) {
    ++operations_;
    if (const status s = heap_.free(at); !s) throw std::runtime_error(s.error().message());
  }

  caching_allocator &heap_;
  unsigned layers_;
  std::size_t unit_;
  unsigned seed_;
  std::vector<void *> parameters_;
  std::size_t peak_ = 0;
  std::uint64_t operations_ = 0;
};

TEST_F(steady, a_training_loop_makes_no_driver_call_after_its_second_step) {
  restart_as((testing::hostcuda_control::config() + ",unbacked").c_str());
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u}) {
    auto made = caching_allocator::create(dev());
    ASSERT_TRUE(made);
    caching_allocator &heap = **made;
    const stream s = make_stream();
    training t(heap, 24, 3_MiB + 4096 * seed, seed);
    t.set_up(s);
    std::string line;
    driver_counts last{};
    for (int i = 0; i < 6; ++i) {
      const driver_counts before = counts();
      t.step(s);
      last = counts() - before;
      line += " " + std::to_string(last.total());
    }
    const auto n = heap.stats();
    std::printf("seed %u: calls by step%s; backed/live peak %.4f (%zu MiB), moved %llu\n", seed,
                line.c_str(),
                static_cast<double>(n.backed_peak) / static_cast<double>(n.total.live_peak),
                n.total.live_peak >> 20, static_cast<unsigned long long>(n.pages_moved));
    EXPECT_EQ(last.total(), 0u) << line;
    t.tear_down();
  }
}

TEST_F(steady, the_hot_path_allocates_nothing_and_calls_nobody) {
  checked_heap h(dev());
  const stream s = make_stream();
  caching_allocator &heap = h.heap();
  std::vector<void *> blocks(64);
  const auto round = [&] {
    for (std::size_t bytes = 512; bytes <= 32_MiB; bytes *= 2) {
      for (void *&b : blocks) b = *heap.allocate(bytes + 512 * (bytes % 7), s);
      for (void *b : blocks) ASSERT_TRUE(heap.free(b, s));
    }
  };
  round();
  round();
  const driver_counts before = counts();
  const std::uint64_t allocations = testing::host_allocations();
  round();
  EXPECT_EQ(testing::host_allocations(), allocations);
  EXPECT_EQ((counts() - before).total(), 0u);
}

}  // namespace
}  // namespace stillmap
