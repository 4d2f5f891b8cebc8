// Threads with a stream each, on a heap that is too small for all: hot paths, growth, pages that
// move between the streams, and blocks that another thread frees.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <random>
#include <thread>

#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

class allocator_threads : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
};

TEST_F(allocator_threads, use_one_heap) {
  constexpr int thread_count = 4;
  caching_allocator_options options;
  options.limit = 40 * page();
  auto made = caching_allocator::create(dev(), options);
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  std::vector<stream> own;
  for (int i = 0; i < thread_count; ++i) own.push_back(make_stream());
  std::mutex shelf_mutex;
  std::vector<void *> shelf;  // blocks for somebody else to free
  std::atomic<int> bad{0}, served{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      const stream_ref s = own[static_cast<std::size_t>(i)];
      std::vector<void *> mine;
      for (int step = 0; step < 600; ++step) {
        const std::size_t bytes =
            random() % 3 == 0 ? 1 + random() % (4 * page()) : 1 + random() % 20000;
        if (const auto got = heap.allocate(bytes, s)) {
          mine.push_back(*got);
          ++served;
        } else if (!got.error().is(condition::out_of_memory)) {
          ++bad;
        }
        if (mine.size() > 6) {
          void *const at = mine[random() % mine.size()];
          std::erase(mine, at);
          if (random() % 4 == 0) {
            const std::lock_guard lock(shelf_mutex);
            shelf.push_back(at);
          } else if (!heap.free(at, s)) {
            ++bad;
          }
        }
        void *others = nullptr;
        if (const std::lock_guard lock(shelf_mutex); !shelf.empty() && random() % 4 == 0) {
          others = shelf.back();
          shelf.pop_back();
        }
        if (others != nullptr && !(random() % 2 == 0 ? heap.free(others) : heap.free(others, s))) {
          ++bad;
        }
        if (step % 150 == 149) {
          if (!heap.empty_cache()) ++bad;
          if (heap.stats().total.backed > options.limit) ++bad;
        }
      }
      for (void *at : mine) {
        if (!heap.free(at)) ++bad;
      }
    });
  }
  for (std::thread &t : threads) t.join();
  for (void *at : shelf) EXPECT_TRUE(heap.free(at));
  EXPECT_EQ(bad, 0);
  EXPECT_GT(served, thread_count * 300);
  EXPECT_EQ(heap.stats().total.live, 0u);
  EXPECT_EQ(heap.stats().total.blocks, 0u);
  for (const stream &s : own) ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(heap.empty_cache());
  EXPECT_EQ(heap.stats().total.backed, 0u);
  made->reset();
}

TEST_F(allocator_threads, a_forked_child_is_refused_and_does_no_harm) {
  auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made);
  const auto block = (*made)->allocate(1000);
  ASSERT_TRUE(block);
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const auto refused = [](const status &s) {
      return !s && s.error().is(condition::not_supported);
    };
    const bool right = refused(testing::outcome((*made)->allocate(1000))) &&
                       refused((*made)->free(*block)) && refused((*made)->record_use(*block, {})) &&
                       refused((*made)->empty_cache());
    made->reset();
    _exit(right ? 0 : 1);
  }
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended));
  EXPECT_EQ(WEXITSTATUS(ended), 0);
  EXPECT_TRUE((*made)->free(*block)) << "the parent goes on";
}

}  // namespace
}  // namespace stillmap
