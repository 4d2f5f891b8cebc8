// Threads that share a stream while its memory grows, is lent to another stream, and its program is found to be a
// loop and to be none: their loops repeat themselves, then change, and requests beyond the limit merge everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/vmm/driver.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"

namespace stillmap {
namespace {

// One thread's blocks. Work on their stream writes them when they are allocated and reads them when they are
// freed, at either end and on both sides of each page boundary.
class sharing_thread {
 public:
  sharing_thread(const device &d, caching_allocator &heap, stream_ref s, unsigned number)
      : device_(d), heap_(heap), stream_(s), value_(static_cast<unsigned char>(64 * number)) {
    const context_guard guard(d.driver(), d.context());
    staging_ =
        static_cast<unsigned char *>(d.driver().allocate_host(staged_at_once * piece).value());
  }
  sharing_thread(const sharing_thread &) = delete;
  ~sharing_thread() {
    settle();
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().free_host(staging_));
  }

  // Requests of up to three pages, the same ones for the same seed; at most three blocks are live.
  void iterate(unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 8; ++i) {
      allocate(512 * (1 + random() % (3 * page() / 512)));
      if (blocks_.size() == 3) free_first();
    }
    while (!blocks_.empty()) free_first();
    settle();
  }
  // Memory may be short.
  bool allocate(std::size_t bytes) {
    const auto got = heap_.allocate(bytes, stream_);
    if (!got) {
      if (!got.error().is(errc::out_of_memory)) wrong_ += got.error().message() + "\n";
      return false;
    }
    const block b{static_cast<unsigned char *>(*got), bytes, value_++};
    for (const std::uint64_t at : places_of(b)) {
      must(device_.driver().set_bytes_async(device_address(at), b.value, piece, stream_.get()));
    }
    blocks_.push_back(b);
    return true;
  }
  void free_first() {
    const block b = blocks_.front();
    blocks_.pop_front();
    for (const std::uint64_t at : places_of(b)) {
      if (read_.size() == staged_at_once) settle();
      must(device_.driver().copy_to_host_async(staging_ + read_.size() * piece, device_address(at),
                                               piece, stream_.get()));
      read_.push_back(b.value);
    }
    must(heap_.free(b.at));
  }
  std::size_t page() const { return device_.capabilities().page_bytes; }
  const std::string &wrong() const { return wrong_; }

 private:
  static constexpr std::size_t piece = 64, staged_at_once = 256;
  struct block {
    unsigned char *at;
    std::size_t bytes;
    unsigned char value;
  };

  std::vector<std::uint64_t> places_of(const block &b) const {
    const auto begin = reinterpret_cast<std::uintptr_t>(b.at), end = begin + b.bytes;
    std::vector<std::uint64_t> out{begin, end - piece};
    for (std::uint64_t edge = (begin / page() + 1) * page(); edge < end; edge += page()) {
      out.push_back(edge - piece);
      out.push_back(edge);
    }
    return out;
  }
  // Compares what was read.
  void settle() {
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().synchronize_stream(stream_.get()));
    for (std::size_t i = 0; i < read_.size(); ++i) {
      const unsigned char *const from = staging_ + i * piece;
      if (std::count(from, from + piece, read_[i]) != piece) wrong_ += "a wrong byte\n";
    }
    read_.clear();
  }
  void must(const status &s) {
    if (!s) wrong_ += s.error().message() + "\n";
  }

  const device &device_;
  caching_allocator &heap_;
  const stream_ref stream_;
  unsigned char value_;
  unsigned char *staging_ = nullptr;
  std::deque<block> blocks_;
  std::vector<unsigned char> read_;  // what each piece of staging_ must be
  std::string wrong_;
};

class shared_stream : public testing::buffer_test {};

TEST_F(shared_stream, is_found_to_be_a_loop_while_threads_use_it) {
  STILLMAP_NEEDS_VMM();
  const int cycles = testing::sanitizer().empty() ? 8 : 2;
  caching_allocator_options options;
  options.limit = 20 * page();
  auto made = caching_allocator::create(dev(), options);
  ASSERT_TRUE(made);
  caching_allocator &heap = **made;
  const stream shared = make_stream(), other = make_stream();
  std::atomic<int> running{2};
  std::atomic<bool> was_loop{false};
  std::vector<std::string> wrong(3);
  const auto on_each_thread = [&](unsigned number, const stream &s, auto act) {
    return std::thread([&, number, act] {
      const context_guard guard(dev().driver(), dev().context());
      sharing_thread mine(dev(), heap, s, number);
      act(mine);
      wrong[number] = mine.wrong();
    });
  };
  const auto loop = [&](unsigned number) {
    return [&, number](sharing_thread &mine) {
      for (int cycle = 0; cycle < cycles; ++cycle) {
        for (int i = 0; i < 60; ++i) mine.iterate(number);
        for (unsigned i = 0; i < 10; ++i)
          mine.iterate(1000 * number + 10 * static_cast<unsigned>(cycle) + i);
      }
      --running;
    };
  };
  std::vector<std::thread> threads;
  threads.push_back(on_each_thread(0, shared, loop(0)));
  threads.push_back(on_each_thread(1, shared, loop(1)));
  threads.push_back(on_each_thread(2, other, [&](sharing_thread &mine) {
    while (running != 0) {
      if (mine.allocate(6 * page())) mine.free_first();
    }
  }));
  // More than the limit: growth merges everything. Blocks are cached in loops alone.
  threads.emplace_back([&] {
    while (running != 0) {
      EXPECT_FALSE(heap.allocate(options.limit + 1, shared));
      for (const arena_stats &a : heap.stats().arenas) {
        if (a.stream == stream_ref(shared) && a.cached != 0) was_loop = true;
      }
    }
  });
  for (std::thread &t : threads) t.join();
  for (const std::string &what : wrong) EXPECT_EQ(what, "");
  EXPECT_TRUE(was_loop);
  EXPECT_GT(heap.stats().pages_moved, 0u);
  EXPECT_EQ(heap.stats().total.live, 0u);
  EXPECT_EQ(heap.stats().total.blocks, 0u);
  made->reset();
}

}  // namespace
}  // namespace stillmap
