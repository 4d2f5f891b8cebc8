// Concurrent callbacks of backing changes, ledger queries, opening and closing of a device, and fences.
#include "tests/system/race/race_fixture.h"

#include <atomic>

namespace stillmap::testing {
namespace {

class callbacks_race : public race_test {
 protected:
  static std::string grow_and_shrink(const device &d, std::size_t rounds) {
    const std::size_t page = d.capabilities().page_bytes;
    buffer_options options;
    options.reserve_bytes = 8 * page;
    auto buffer = growable_buffer::create(d, options);
    if (!buffer) return buffer.error().message();
    for (std::size_t r = 0; r < rounds; ++r) {
      if (const status s = buffer->resize((1 + r % 5) * page); !s) return s.error().message();
      if (const status s = buffer->resize(page); !s) return s.error().message();
      if (const status s = buffer->shrink_to_fit(); !s) return s.error().message();
    }
    return "";
  }
};

// Callbacks run on the changing threads and may ask the ledger anything. Each change is announced
// before it happens and told afterwards.
TEST_F(callbacks_race, CallbacksWhileOthersGrow) {
  machine("memory=256M");
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "no pages, no backing changes: " << d.name();
  std::atomic<std::uint64_t> before{0}, after{0}, odd{0};
  const auto watching = d.space().on_backing_change([&](const backing_event &e) {
    (e.when == backing_event::phase::about_to_change ? before : after).fetch_add(1);
    if (e.range.empty() || e.block == nullptr || !e.block->range().contains(e.range)) ++odd;
    if (d.space().stats().live_blocks == 0) ++odd;
    if (d.space().mappings(e.range).size() > 100) ++odd;
  });
  together(4, [&](std::size_t) { return grow_and_shrink(d, 20); });
  EXPECT_EQ(before.load(), after.load());
  EXPECT_GT(before.load(), 4u * 20u);
  EXPECT_EQ(odd.load(), 0u);
}

// A dropped subscription is not called once a change that began later is told.
TEST_F(callbacks_race, SubscriptionsComeAndGo) {
  machine("memory=256M");
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "no pages, no backing changes: " << d.name();
  std::atomic<std::uint64_t> told{0};
  together(4, [&](std::size_t i) -> std::string {
    if (i < 2) return grow_and_shrink(d, 30);
    for (int r = 0; r < 300; ++r) {
      const auto canary = std::make_shared<std::atomic<int>>(1);
      auto watching = d.space().on_backing_change([canary, &told](const backing_event &) {
        if (canary->load() == 1) ++told;
      });
      std::this_thread::yield();
      watching.reset();
    }
    return "";
  });
  std::uint64_t late = 0;
  auto watching = d.space().on_backing_change([&](const backing_event &) { ++late; });
  watching.reset();
  EXPECT_EQ(grow_and_shrink(d, 2), "");
  EXPECT_EQ(late, 0u);
}

// The books are consistent copies whatever others do meanwhile.
TEST_F(callbacks_race, BooksWhileOthersGrow) {
  machine("memory=256M");
  const device d = open_device();
  std::atomic<int> growing{3};
  together(4, [&](std::size_t i) -> std::string {
    if (i < 3) {
      std::string wrong = grow_and_shrink(d, 20);
      --growing;
      return wrong;
    }
    while (growing != 0) {
      const auto mappings = d.space().mappings();
      for (std::size_t k = 1; k < mappings.size(); ++k) {
        if (mappings[k - 1].range.end() > mappings[k].range.begin) return "mappings overlap";
      }
      for (const block_record &b : d.space().blocks()) {
        if (b.mapped_bytes > b.range.bytes) return "a block maps more than it has";
        const auto block = d.space().block_at(b.range.begin);
        if (block && block->id() == b.id && block->range() != b.range) return "a block changed";
      }
      const address_space_stats s = d.space().stats();
      if (s.retiring_mappings > s.live_mappings) return "more retire than live";
    }
    return "";
  });
}

// Handles come and go in many threads; the context is retained and released for each last one.
TEST_F(callbacks_race, OpeningAndClosingTheDevice) {
  machine("memory=64M");
  together(4, [&](std::size_t i) -> std::string {
    for (int r = 0; r < 12; ++r) {
      const auto d = device::open(driver(), 0);
      if (!d) return d.error().message();
      if (d->capabilities().page_bytes == 0) return "a device that was not probed";
      if ((static_cast<std::size_t>(r) + i) % 3 == 0) {
        const std::string wrong = grow_and_shrink(*d, 2);
        if (!wrong.empty()) return wrong;
      }
    }
    return "";
  });
  EXPECT_EQ(hostcuda_control::counters().live_contexts, 0u);
}

TEST_F(callbacks_race, FencesAreDroppedAnywhere) {
  machine("memory=64M,schedule=jitter:" + std::to_string(seed_of_run(1)) + ",jitter_us=50");
  const device d = open_device();
  const auto s = stream::create(d);
  ASSERT_TRUE(s.has_value());
  std::mutex mutex;
  fence shared;
  together(4, [&](std::size_t i) -> std::string {
    const auto own = stream::create(d);
    if (!own) return own.error().message();
    for (int r = 0; r < 60; ++r) {
      auto f = fence::after(d, i % 2 == 0 ? stream_ref(*s) : stream_ref(*own));
      if (!f) return f.error().message();
      fence copy;
      {
        const std::lock_guard lock(mutex);
        if (const status joined = shared.join(*f); !joined) return joined.error().message();
        copy = shared;
        if (r % 7 == 0) shared = fence();
      }
      if (r % 3 == 0) {
        if (const auto p = copy.passed(); !p) return p.error().message();
      } else if (r % 3 == 1) {
        if (const status w = copy.wait(); !w) return w.error().message();
      } else if (const status w = copy.make_wait(d, *own); !w) {
        return w.error().message();
      }
    }
    return "";
  });
}

}  // namespace
}  // namespace stillmap::testing
