// Allocation history: order, bounded size, and no cost while it is off.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <span>
#include <thread>

#include "tests/allocators/checked_heap.h"
#include "tests/support/buffer_test.h"
#include "tests/support/effort.h"
#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::fails_with;
using testing::outcome;

class history : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto made = caching_allocator::create(dev());
    ASSERT_TRUE(made);
    heap_ = std::move(*made);
  }
  void TearDown() override {
    heap_.reset();
    buffer_test::TearDown();
  }
  caching_allocator &heap() { return *heap_; }
  allocation_history told() {
    auto copy = heap_->history();
    EXPECT_TRUE(copy);
    return copy ? std::move(*copy) : allocation_history();
  }

 private:
  std::unique_ptr<caching_allocator> heap_;
};

std::size_t count(const allocation_history &h, history_action a) {
  return static_cast<std::size_t>(std::count_if(
      h.events.begin(), h.events.end(), [&](const history_event &e) { return e.action == a; }));
}

std::uint64_t address_of(const void *block) {
  return reinterpret_cast<std::uintptr_t>(block);
}

TEST_F(history, a_block_is_told_from_its_memory_to_its_end) {
  const stream s = make_stream();
  ASSERT_TRUE(heap().record_history());
  EXPECT_TRUE(heap().records_history());
  const auto block = heap().allocate(3_MiB + 5, s);
  ASSERT_TRUE(block);
  ASSERT_TRUE(heap().free(*block));
  const allocation_history h = told();
  ASSERT_EQ(h.events.size(), 5u);
  EXPECT_EQ(h.recorded, 5u);
  EXPECT_EQ(h.lost, 0u);
  EXPECT_EQ(h.events[0].action, history_action::reserve);
  const history_event &mapped = h.events[1], &made = h.events[2], &asked = h.events[3];
  EXPECT_EQ(mapped.action, history_action::page_map);
  EXPECT_GE(mapped.bytes, made.usable);
  EXPECT_LE(mapped.bytes, has_vmm() ? made.usable + page() : 32_MiB)
      << "a chunk is for several blocks";
  EXPECT_EQ(made.action, history_action::allocate);
  EXPECT_EQ(made.address, address_of(*block));
  EXPECT_EQ(made.bytes, 3_MiB + 5);
  EXPECT_EQ(made.usable, 3_MiB + 512);
  EXPECT_EQ(made.stream, stream_ref(s));
  EXPECT_EQ(asked.action, history_action::free_requested);
  EXPECT_EQ(asked.bytes, 3_MiB + 5);
  EXPECT_EQ(asked.stream, stream_ref(s));
  EXPECT_EQ(h.events[4].action, history_action::free_completed);
  EXPECT_EQ(h.events[4].address, address_of(*block));
  for (std::size_t i = 1; i < h.events.size(); ++i) {
    EXPECT_LE(h.events[i - 1].time_ns, h.events[i].time_ns);
  }
}

TEST_F(history, small_blocks_and_misuse) {
  const stream s = make_stream();
  ASSERT_TRUE(heap().record_history());
  const auto block = heap().allocate(700, s);
  ASSERT_TRUE(block);
  ASSERT_TRUE(heap().free(*block));
  const auto events = told().events;
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events[events.size() - 3].bytes, 700u);
  EXPECT_EQ(events[events.size() - 3].usable, 1024u);
  EXPECT_EQ(events.back().action, history_action::free_completed);
  // What did not happen is not told: a second free, no block, nothing.
  EXPECT_FALSE(heap().free(*block));
  int elsewhere = 0;
  EXPECT_FALSE(heap().free(&elsewhere));
  EXPECT_TRUE(heap().free(nullptr));
  EXPECT_TRUE(heap().allocate(0, s));
  EXPECT_EQ(told().events.size(), events.size());
}

TEST_F(history, what_other_streams_use_is_complete_when_they_have_passed) {
  const stream s = make_stream(), other = make_stream();
  ASSERT_TRUE(heap().record_history());
  const auto used = heap().allocate(1_MiB - 100, s), alone = heap().allocate(1_MiB, s);
  const auto small = heap().allocate(700, s);
  ASSERT_TRUE(used && alone && small);
  ASSERT_TRUE(heap().record_use(*used, other));
  ASSERT_TRUE(heap().free(*small, other));
  ASSERT_TRUE(heap().free(*used));
  ASSERT_TRUE(heap().free(*alone, other));
  EXPECT_EQ(count(told(), history_action::free_requested), 3u);
  EXPECT_EQ(count(told(), history_action::free_completed), 0u);
  ASSERT_TRUE(after(s).wait());
  ASSERT_TRUE(after(other).wait());
  ASSERT_TRUE(heap().empty_cache());
  const allocation_history h = told();
  EXPECT_EQ(count(h, history_action::free_completed), 3u);
  const auto completed = [&](const void *block) {
    const auto done = std::find_if(h.events.begin(), h.events.end(), [&](const history_event &e) {
      return e.action == history_action::free_completed && e.address == address_of(block);
    });
    return done != h.events.end() ? *done : history_event{};
  };
  EXPECT_EQ(completed(*used).bytes, 1_MiB - 100);
  EXPECT_EQ(completed(*used).usable, 1_MiB);
  EXPECT_EQ(completed(*small).bytes, 700u);
  EXPECT_EQ(completed(*small).usable, 1024u);
  EXPECT_EQ(count(h, history_action::page_unmap), 2u) << "of small and of large blocks";
}

// What is told of pages adds up to what is held, wherever they went.
TEST_F(history, memory_that_moves_is_told_with_both_addresses) {
  STILLMAP_NEEDS_VMM();
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream(), other = make_stream();
  ASSERT_TRUE(heap().record_history());
  std::vector<void *> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(*heap().allocate(4 * page(), s));
  for (std::size_t i = 0; i < 8; i += 2) ASSERT_TRUE(heap().free(blocks[i]));
  heap().set_limit(heap().stats().total.committed);
  const auto large = heap().allocate(16 * page(), s);  // from the pages of four
  ASSERT_TRUE(large) << large.error().message();
  ASSERT_TRUE(heap().free(*large));
  const auto elsewhere = heap().allocate(8 * page(), other);  // from another stream
  ASSERT_TRUE(elsewhere) << elsewhere.error().message();
  const allocation_history h = told();
  std::map<std::uint64_t, std::uint64_t> memory;  // by page
  for (const history_event &e : h.events) {
    for (std::size_t at = 0; at < e.bytes; at += page()) {
      if (e.action == history_action::page_map) {
        EXPECT_TRUE(memory.emplace(e.address + at, 0).second);
      } else if (e.action == history_action::page_unmap) {
        EXPECT_EQ(memory.erase(e.address + at), 1u);
      } else if (e.action == history_action::page_move) {
        EXPECT_EQ(memory.erase(e.from + at), 1u);
        EXPECT_TRUE(memory.emplace(e.address + at, 0).second);
      }
    }
  }
  EXPECT_GE(count(h, history_action::page_move), 5u);
  EXPECT_EQ(memory.size() * page(), heap().stats().total.committed);
  const heap_map drawn = heap().map().value();
  for (const auto &a : drawn.arenas) {
    for (const heap_extent &seg : a.extents) {
      if (!has_memory(seg.part)) continue;
      const std::uint64_t begin = seg.range.begin.value();
      EXPECT_TRUE(memory.contains(begin - begin % page())) << name_of(seg.part);
    }
  }
}

TEST_F(history, a_request_that_failed_and_a_map_that_was_drawn) {
  ASSERT_TRUE(heap().record_history());
  heap().set_limit(4 * page());
  EXPECT_FALSE(heap().allocate(5 * page()));
  const heap_map drawn = heap().map().value();
  allocate_options odd;
  odd.alignment = 3;
  EXPECT_FALSE(heap().allocate(1, {}, odd));  // no want of memory
  const allocation_history h = told();
  // Addresses that come only with memory were not had.
  const std::size_t first = has_vmm() ? 1 : 0;
  ASSERT_EQ(h.events.size(), first + 2);
  if (has_vmm()) {
    EXPECT_EQ(h.events[0].action, history_action::reserve);
  }
  EXPECT_EQ(h.events[first].action, history_action::out_of_memory);
  EXPECT_EQ(h.events[first].bytes, 5 * page());
  EXPECT_EQ(h.events[first].available, 4 * page());
  EXPECT_EQ(h.events[first + 1].action, history_action::snapshot);
}

TEST_F(history, the_oldest_go_first_and_are_counted) {
  const stream s = make_stream();
  history_options few;
  few.events = 7;
  ASSERT_TRUE(heap().record_history(few));
  const std::size_t held = heap().stats().host_bytes;
  std::vector<void *> blocks;
  for (std::size_t i = 1; i <= 20; ++i) {
    blocks.push_back(*heap().allocate(i * 512, s));
  }
  const allocation_history h = told();
  ASSERT_EQ(h.events.size(), 7u);
  EXPECT_GT(h.recorded, 20u);
  EXPECT_EQ(h.lost, h.recorded - 7);
  EXPECT_EQ(h.events.back().bytes, 20u * 512);
  EXPECT_EQ(h.options.events, 7u);
  for (void *b : blocks) ASSERT_TRUE(heap().free(b));
  EXPECT_EQ(told().events.size(), 7u);
  EXPECT_GE(heap().stats().host_bytes, held);
}

TEST_F(history, begins_anew_stops_and_forgets) {
  const stream s = make_stream();
  const auto one = [&] {
    const auto block = heap().allocate(512, s);
    ASSERT_TRUE(block);
    ASSERT_TRUE(heap().free(*block));
  };
  one();
  EXPECT_TRUE(told().events.empty());
  ASSERT_TRUE(heap().record_history());
  one();
  EXPECT_EQ(told().events.size(), 3u);
  heap().stop_history();
  EXPECT_FALSE(heap().records_history());
  one();
  EXPECT_EQ(told().events.size(), 3u);
  const std::size_t before = heap().stats().host_bytes;
  heap().forget_history();
  EXPECT_TRUE(told().events.empty());
  EXPECT_EQ(told().recorded, 0u);
  EXPECT_EQ(told().lost, 0u);
  EXPECT_EQ(before - heap().stats().host_bytes, history_options().events * sizeof(history_event));
  ASSERT_TRUE(heap().record_history());
  one();
  ASSERT_TRUE(heap().record_history());
  EXPECT_TRUE(told().events.empty());
}

TEST_F(history, refuses_what_it_cannot_keep) {
  history_options o;
  o.events = 0;
  EXPECT_TRUE(fails_with(outcome(heap().record_history(o)), errc::invalid_argument,
                         "caching_allocator::record_history"));
  o.events = SIZE_MAX;
  EXPECT_TRUE(fails_with(outcome(heap().record_history(o)), errc::invalid_argument,
                         "caching_allocator::record_history"));
  o.events = 16;
  o.stack_depth = 65;
  EXPECT_TRUE(fails_with(outcome(heap().record_history(o)), errc::invalid_argument,
                         "caching_allocator::record_history", 65, 64));
  EXPECT_FALSE(heap().records_history());
  EXPECT_TRUE(told().events.empty());
}

// Not inlined, and not the last thing in its caller: both are on the stack.
[[gnu::noinline]] void *asks_for(caching_allocator &heap, std::size_t bytes) {
  const auto block = heap.allocate(bytes);
  return block ? *block : nullptr;
}

[[gnu::noinline]] bool gives_back(caching_allocator &heap, void *block) {
  const status freed = heap.free(block);
  return freed.has_value();
}

// Whether one of the frames is in `function`: code within a little of its begin.
bool comes_from(const void *function, std::span<const void *const> stack) {
  return std::any_of(stack.begin(), stack.end(), [&](const void *frame) {
    return address_of(frame) - address_of(function) < 4096;
  });
}

TEST_F(history, a_stack_has_at_most_one_frame_of_the_allocator) {
  history_options o;
  // The sanitizers have a frame of their own in each stack walk.
  o.stack_depth = testing::sanitizer().empty() ? 2 : 4;
  ASSERT_TRUE(heap().record_history(o));
  void *const block = asks_for(heap(), 512);
  ASSERT_TRUE(gives_back(heap(), block));
  const allocation_history h = told();
  EXPECT_EQ(count(h, history_action::allocate), 1u);
  EXPECT_EQ(count(h, history_action::free_requested), 1u);
  for (const history_event &e : h.events) {
    const auto stack = h.stack_of(e);
    if (e.action == history_action::allocate) {
      EXPECT_TRUE(comes_from(reinterpret_cast<const void *>(&asks_for), stack));
    } else if (e.action == history_action::free_requested) {
      EXPECT_TRUE(comes_from(reinterpret_cast<const void *>(&gives_back), stack));
    }
  }
}

TEST_F(history, callers_are_those_who_called) {
  history_options o;
  o.events = 64;
  o.stack_depth = 8;
  ASSERT_TRUE(heap().record_history(o));
  void *const block = asks_for(heap(), 512);
  ASSERT_NE(block, nullptr);
  ASSERT_TRUE(heap().free(block));
  const allocation_history h = told();
  std::size_t with_stack = 0, frames = 0;
  for (const history_event &e : h.events) {
    const auto stack = h.stack_of(e);
    ASSERT_LE(stack.size(), 8u);
    if (!stack.empty()) {
      EXPECT_EQ(stack.data(), h.frames.data() + frames) << "each event has frames of its own";
    }
    frames += stack.size();
    if (!stack.empty()) ++with_stack;
    if (e.action != history_action::allocate) continue;
    ASSERT_FALSE(stack.empty());
    EXPECT_TRUE(comes_from(reinterpret_cast<const void *>(&asks_for), stack));
    const stack_frame named = describe_frame(stack.back());
    EXPECT_FALSE(named.module.empty());
  }
  EXPECT_EQ(frames, h.frames.size());
  EXPECT_EQ(with_stack, 2u);  // the request and its end; what follows by itself has no caller
  EXPECT_EQ(describe_frame(nullptr).module, "");
  EXPECT_EQ(describe_frame(nullptr).offset, 0u);
  const stack_frame in_no_module = describe_frame(reinterpret_cast<const void *>(16));
  EXPECT_EQ(in_no_module.module, "");
  EXPECT_EQ(in_no_module.offset, 16u);
}

TEST_F(history, a_function_of_a_shared_library_has_its_name) {
  const void *const known = reinterpret_cast<const void *>(&std::malloc);
  const stack_frame f = describe_frame(static_cast<const char *>(known) + 1);
  EXPECT_FALSE(f.function.empty());
  EXPECT_EQ(f.offset, 1u);
}

// Asks for figures in the midst of growing, from another thread, and waits for the answer.
class curious : public heap_observer {
 public:
  bool on_event(const history_event &e) noexcept override {
    ++events;
    if (e.action != history_action::page_map) return true;
    std::thread([&] { seen = heap->stats(); }).join();
    return false;
  }
  caching_allocator *heap = nullptr;
  caching_allocator_stats seen;
  int events = 0;
};

TEST_F(history, figures_do_not_wait_for_who_finds_memory) {
  const auto observer = std::make_shared<curious>();
  caching_allocator_options options;
  options.observer = observer;
  const auto watched = std::move(*caching_allocator::create(dev(), options));
  observer->heap = watched.get();
  const auto block = watched->allocate(3_MiB);
  ASSERT_TRUE(block);
  EXPECT_EQ(observer->seen.growths, 1u);
  EXPECT_EQ(observer->seen.arenas.size(), 1u);
  EXPECT_EQ(observer->events, 2);  // addresses, memory; then it wanted no more
  ASSERT_TRUE(watched->free(*block));
  EXPECT_EQ(observer->events, 2);
}

// Of every address: handed out, asked back, free; and that again.
TEST_F(history, threads_do_not_mix_up_the_order_of_one_address) {
  std::vector<stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(make_stream());
  history_options o;
  o.events = 1 << 14;
  ASSERT_TRUE(heap().record_history(o));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      // Two threads for each stream, so that one gets what the other has freed.
      const stream_ref s = streams[static_cast<std::size_t>(t / 2)];
      for (int i = 0; i < 400; ++i) {
        const auto block = heap().allocate(static_cast<std::size_t>(512 * (1 + i % 40)), s);
        if (!block || !heap().free(*block)) ADD_FAILURE() << "in thread " << t;
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const allocation_history h = told();
    EXPECT_EQ(h.lost + h.events.size(), h.recorded);
  }
  for (std::thread &t : threads) t.join();
  const allocation_history h = told();
  ASSERT_EQ(h.lost, 0u);
  std::map<std::uint64_t, history_action> last;
  for (const history_event &e : h.events) {
    const auto found = last.find(e.address);
    const history_action before =
        found == last.end() ? history_action::free_completed : found->second;
    if (e.action == history_action::allocate) {
      ASSERT_EQ(before, history_action::free_completed);
    } else if (e.action == history_action::free_requested) {
      ASSERT_EQ(before, history_action::allocate);
    } else if (e.action == history_action::free_completed) {
      ASSERT_EQ(before, history_action::free_requested);
    } else {
      continue;
    }
    last[e.address] = e.action;
  }
  EXPECT_EQ(count(h, history_action::allocate), 1600u);
  EXPECT_EQ(count(h, history_action::free_completed), 1600u);
}

TEST_F(history, recording_allocates_nothing_once_begun_and_off_costs_nothing) {
  STILLMAP_NEEDS_HOSTCUDA();
  const stream s = make_stream();
  const auto round = [&] {
    for (std::size_t bytes = 512; bytes <= 8_MiB; bytes *= 2) {
      const auto block = heap().allocate(bytes, s);
      ASSERT_TRUE(block && heap().free(*block));
    }
  };
  const auto spent = [&] {
    for (int i = 0; i < 6; ++i) round();  // until it is known to repeat itself
    const std::uint64_t allocations = testing::host_allocations();
    const driver_counts before = counts();
    for (int i = 0; i < 4; ++i) round();
    EXPECT_EQ((counts() - before).total(), 0u);
    return testing::host_allocations() - allocations;
  };
  EXPECT_EQ(spent(), 0u) << "never switched on";
  history_options o;
  o.events = 100;
  o.stack_depth = 8;
  ASSERT_TRUE(heap().record_history(o));
  EXPECT_EQ(spent(), 0u) << "on";
  heap().stop_history();
  EXPECT_EQ(spent(), 0u) << "off again";
}

}  // namespace
}  // namespace stillmap
