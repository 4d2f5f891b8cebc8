// Threads with one stream each, on a heap that is too small for all of them: the fast path, growth,
// pages that move between streams, and blocks that another thread frees.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/op_sequence.h"

namespace stillmap {
namespace {

class allocator_threads : public testing::buffer_test {};

TEST_F(allocator_threads, use_one_heap) {
  constexpr int thread_count = 4, wanted = 500;
  caching_allocator_options options;
  options.limit = 40 * page();
  auto made = caching_allocator::create(dev(), options);
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  std::vector<stream> own;
  for (int i = 0; i < thread_count; ++i) own.push_back(make_stream());
  std::mutex shelf_mutex;
  std::vector<void *> shelf;       // blocks for somebody else to free
  std::vector<std::string> wrong;  // under shelf_mutex
  const auto is_wrong = [&](const std::string &what) {
    const std::lock_guard lock(shelf_mutex);
    wrong.push_back(what);
  };
  const auto free_it = [&](void *at, auto... on) {
    if (const status s = heap.free(at, on...); !s) is_wrong(s.error().message());
  };
  // A refused thread frees a block and goes on, so that all are served however they are scheduled.
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<unsigned>(i));
      const stream_ref s = own[static_cast<std::size_t>(i)];
      std::vector<void *> mine;
      int served = 0;
      for (int step = 0; served < wanted; ++step) {
        const std::size_t bytes =
            random() % 3 == 0 ? 1 + random() % (4 * page()) : 1 + random() % 20000;
        const auto got = heap.allocate(bytes, s);
        if (got) {
          mine.push_back(*got);
          ++served;
        } else if (!got.error().is(errc::out_of_memory) ||
                   std::chrono::steady_clock::now() > give_up) {
          is_wrong(got.error().message());
          break;
        } else {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
        if (mine.size() > 6 || (!got && !mine.empty())) {
          void *const at = mine[random() % mine.size()];
          std::erase(mine, at);
          if (random() % 4 == 0) {
            const std::lock_guard lock(shelf_mutex);
            shelf.push_back(at);
          } else {
            free_it(at, s);
          }
        }
        void *others = nullptr;
        if (const std::lock_guard lock(shelf_mutex); !shelf.empty() && random() % 4 == 0) {
          others = shelf.back();
          shelf.pop_back();
        }
        if (others != nullptr) random() % 2 == 0 ? free_it(others) : free_it(others, s);
        if (step % 150 == 149) {
          if (const auto e = heap.empty_cache(); !e) is_wrong(e.error().message());
          if (const std::size_t committed = heap.stats().total.committed;
              committed > options.limit) {
            is_wrong(std::to_string(committed) + " bytes are committed");
          }
        }
      }
      for (void *at : mine) free_it(at);
    });
  }
  for (std::thread &t : threads) t.join();
  for (void *at : shelf) EXPECT_TRUE(heap.free(at));
  for (const std::string &what : wrong) ADD_FAILURE() << what;
  EXPECT_EQ(heap.stats().total.live, 0u);
  EXPECT_EQ(heap.stats().total.blocks, 0u);
  for (const stream &s : own) ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(heap.empty_cache());
  EXPECT_EQ(heap.stats().total.committed, 0u);
  made->reset();
}

// Pages go to and fro between the first stream and the last; none is ever counted on both.
TEST_F(allocator_threads, figures_are_of_one_moment) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  // Little memory, since each stream takes addresses for twice as much, and a sanitizer leaves few.
  restart_as(testing::machine_config("unbacked,memory=1G").c_str());
  auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  std::vector<stream> own;
  for (int i = 0; i < 200; ++i) {
    own.push_back(make_stream());
    ASSERT_TRUE(heap.allocate(page(), own.back()));
  }
  const std::size_t limit = 201 * page();
  heap.set_limit(limit);
  std::atomic<bool> done{false};
  // Under a sanitizer who asks for figures holds the locks nearly all the time.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  std::thread mover([&] {
    for (int round = 0; round < 3000 && std::chrono::steady_clock::now() < until; ++round) {
      const auto got = heap.allocate(page(), round % 2 == 0 ? own.front() : own.back());
      EXPECT_TRUE(got) << got.error().message();
      if (got) {
        EXPECT_TRUE(heap.free(*got));
      }
    }
    done = true;
  });
  std::size_t most_backed = 0, most_live = 0;
  while (!done) {
    const arena_stats now = heap.stats().total;
    most_backed = std::max(most_backed, now.committed);
    most_live = std::max(most_live, now.live);
  }
  mover.join();
  EXPECT_LE(most_backed, limit);
  EXPECT_LE(most_live, limit);
}

TEST_F(allocator_threads, a_forked_child_is_refused_and_does_no_harm) {
  auto made = caching_allocator::create(dev());
  ASSERT_TRUE(made);
  const auto block = (*made)->allocate(1000);
  ASSERT_TRUE(block);
  const pid_t child = fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    const auto refused = [](const status &s) { return !s && s.error().is(errc::not_supported); };
    const bool right = refused(testing::outcome((*made)->allocate(1000))) &&
                       refused((*made)->free(*block)) && refused((*made)->record_use(*block, {})) &&
                       refused(testing::outcome((*made)->empty_cache())) &&
                       refused(testing::outcome((*made)->map())) &&
                       refused(testing::outcome((*made)->usable_size(*block))) &&
                       refused(testing::outcome((*made)->history())) &&
                       refused((*made)->record_history()) && !(*made)->records_history() &&
                       (*made)->stats().total.committed == 0;
    (*made)->reset_peaks();
    (*made)->stop_history();
    (*made)->forget_history();
    (*made)->mark_iteration();
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
