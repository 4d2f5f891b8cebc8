// The allocator driven as PyTorch's pluggable allocator and its MemPool drive one, from eight threads.
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/vmm/stream.h"
#include "tests/c_api/world.h"
#include "tests/support/gpu_test.h"

namespace stillmap::testing {
namespace {

struct torch_thread {
  stillmap_allocator *allocator;
  stillmap_stream own, other;
  std::mt19937_64 random;
  std::vector<std::pair<void *, bool>> tensors{};  // whether it was used on the other stream
  int wrong = 0;

  void need(stillmap_status s) { wrong += s != STILLMAP_OK; }
  void *tensor() {
    static constexpr std::size_t sizes[] = {4, 512, 20'000, 1 << 20, 3 << 20};
    void *made = nullptr;
    need(stillmap_allocator_allocate(allocator, sizes[random() % std::size(sizes)], own, nullptr,
                                     &made));
    return made;
  }
  void drop(std::size_t i) {
    need(stillmap_allocator_free_on_stream(allocator, tensors[i].first, own));
    tensors[i] = tensors.back();
    tensors.pop_back();
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      const bool shared = random() % 8 == 0;
      tensors.emplace_back(tensor(), shared);
      if (shared) need(stillmap_allocator_record_use(allocator, tensors.back().first, other));
      if (tensors.size() > 20) drop(random() % tensors.size());
      if (i % 100 == 99) need(stillmap_allocator_empty_cache(allocator, nullptr));
    }
    while (!tensors.empty()) drop(0);
  }
  // torch.cuda.use_mem_pool: a pool whose blocks outlive it.
  void use_pool() {
    uint64_t pool = 0;
    need(stillmap_pool_create(allocator, &pool));
    need(stillmap_pool_begin(allocator, pool, own));
    void *const kept = tensor(), *const dropped = tensor();
    need(stillmap_allocator_free_on_stream(allocator, dropped, own));
    need(stillmap_pool_end(allocator, pool, own));
    need(stillmap_pool_release(allocator, pool, &own, 1));
    need(stillmap_allocator_free_on_stream(allocator, kept, own));
  }
};

class c_api_pytorch : public device_test {};

TEST_F(c_api_pytorch, eight_threads_allocate_share_and_use_pools) {
  c_world w(false);
  const device d = open_device();
  std::vector<stream> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(std::move(*stream::create(d)));
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < streams.size(); ++i) {
    threads.emplace_back([&, i] {
      torch_thread t{w.allocator, streams[i].get(), streams[(i + 1) % streams.size()].get(),
                     std::mt19937_64(i)};
      for (int epoch = 0; epoch < 3; ++epoch) {
        t.train(150);
        t.use_pool();
      }
      wrong += t.wrong;
    });
  }
  for (std::thread &t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  auto stats = sized<stillmap_allocator_stats>();
  ASSERT_TRUE(c_done(stillmap_allocator_get_stats(w.allocator, &stats)));
  EXPECT_EQ(stats.allocations, 8U * 3 * (150 + 2));
  EXPECT_EQ(stats.allocations, stats.frees);
  EXPECT_EQ(stats.live, 0U);
  for (const stream &s : streams) {
    EXPECT_TRUE(c_done(stillmap_allocator_forget_stream(w.allocator, s.get())));
  }
  EXPECT_TRUE(c_done(stillmap_allocator_destroy(w.allocator)));
  w.allocator = nullptr;
}

}  // namespace
}  // namespace stillmap::testing
