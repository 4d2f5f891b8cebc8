// Several threads with buffers of their own on one device, which share the pool, the ledger and the
// driver.
#include "tests/system/race/race_fixture.h"

#include <atomic>
#include <random>

namespace stillmap::testing {
namespace {

using threads_race = race_test;

// Where pages cannot be mapped, shrinking copies to a smaller allocation, which others may have
// left no memory for.
std::string shrink(growable_buffer &buffer, std::size_t bytes, const fence &idle) {
  if (const status s = buffer.resize(bytes); !s) return s.error().message();
  const status s = buffer.shrink_to_fit(idle);
  if (s || (!buffer.in_place() && s.error().is(errc::out_of_memory))) return "";
  return s.error().message();
}

// One thread's life with a buffer: grows, writes, reads back, gives back, under its own stream.
std::string live_with_a_buffer(const device &d, std::size_t who, std::size_t rounds,
                               std::shared_ptr<page_pool> pool) {
  const auto s = stream::create(d);
  if (!s) return s.error().message();
  buffer_options options;
  const std::size_t page = d.capabilities().page_bytes;
  options.reserve_bytes = 16 * page;
  if (pool != nullptr) options.pools = {pool};
  auto buffer = growable_buffer::create(d, options);
  if (!buffer) return buffer.error().message();
  if (!buffer->in_place()) rounds /= 3;  // copying takes its time
  std::mt19937 dice(static_cast<unsigned>(who * 977 + seed_of_run(1)));
  for (std::size_t r = 0; r < rounds; ++r) {
    const std::size_t bytes = (1 + dice() % 5) * page;
    const auto value = static_cast<unsigned char>(who * 50 + r + 1);
    if (const status grown = buffer->resize(bytes, *s); !grown) {
      if (grown.error().is(errc::out_of_memory)) continue;  // the others have it
      return grown.error().message();
    }
    if (!fill(d, buffer->address(), bytes, value, *s)) return "fill failed";
    if (r % 3 == 0 && !holds(d, buffer->address() + (bytes - 4096), 4096, value, *s)) {
      return "what was written is not there";
    }
    const auto idle = fence::after(d, *s);
    if (!idle) return idle.error().message();
    switch (dice() % 4) {
      case 0:
        if (const std::string wrong = shrink(*buffer, page, *idle); !wrong.empty()) return wrong;
        break;
      case 1:
        if (buffer->in_place() && !buffer->decommit(0, page, *idle)) return "decommit failed";
        break;
      case 2: {
        if (!buffer->close(*idle)) return "close failed";
        auto next = growable_buffer::create(d, options);
        if (!next) return next.error().message();
        *buffer = std::move(*next);
        break;
      }
      default:
        break;
    }
    if (d.space().stats().mapped_bytes > std::size_t{1} << 40) return "the ledger went wild";
  }
  return "";
}

TEST_F(threads_race, BuffersShareOneDevice) {
  for (const std::string &schedule : schedules(2, false)) {
    machine("memory=256M," + schedule);
    const device d = open_device();
    together(4, [&](std::size_t i) { return live_with_a_buffer(d, i, 25, nullptr); });
    EXPECT_EQ(first_violation(), "") << schedule;
    d.space().collect(true);
    EXPECT_EQ(d.space().stats().live_mappings, 0u);
  }
}

// There is not enough for all: pages go from retiring mappings of one stream to another.
TEST_F(threads_race, PagesAreStolenAcrossStreamsUnderPressure) {
  std::uint64_t reused = 0;
  for (const std::string &schedule : schedules(3, false)) {
    machine("memory=24M," + schedule);
    const device d = open_device();
    if (!d.capabilities().vmm) GTEST_SKIP() << "this device maps nothing: " << d.name();
    {
      page_pool_options limits;
      const auto pool = page_pool::create(d, limits);
      ASSERT_TRUE(pool.has_value());
      together(4, [&](std::size_t i) { return live_with_a_buffer(d, i, 30, *pool); });
      EXPECT_EQ(first_violation(), "") << schedule;
      reused += (*pool)->stats().pages_reused;
      const page_pool_stats s = (*pool)->stats();
      d.space().collect(true);
      EXPECT_EQ((*pool)->stats().free, (*pool)->stats().created);
      EXPECT_LE(s.created.bytes(), std::size_t{24} << 20);
    }
  }
  EXPECT_GT(reused, 0u);
}

// One host thread, several streams, every order of their work that the seeds draw.
TEST_F(threads_race, SeededOrdersOfSeveralStreams) {
  for (const std::string &schedule : schedules(3, true)) {
    machine("memory=24M," + schedule);
    const device d = open_device();
    const std::size_t page = d.capabilities().page_bytes;
    std::vector<stream> streams;
    std::vector<growable_buffer> buffers;
    for (int i = 0; i < 3; ++i) {
      auto s = stream::create(d);
      ASSERT_TRUE(s.has_value());
      streams.push_back(std::move(*s));
      buffer_options options;
      options.reserve_bytes = 8 * page;
      auto b = growable_buffer::create(d, options);
      ASSERT_TRUE(b.has_value());
      buffers.push_back(std::move(*b));
    }
    for (std::size_t r = 0; r < 24; ++r) {
      const std::size_t i = r % 3;
      const auto value = static_cast<unsigned char>(r + 1);
      const status grown = buffers[i].resize((2 + r % 4) * page, streams[i]);
      if (!grown) {
        EXPECT_TRUE(grown.error().is(errc::out_of_memory)) << grown.error().message();
        continue;
      }
      ASSERT_TRUE(fill(d, buffers[i].address(), buffers[i].size(), value, streams[i]).has_value());
      if (r % 5 == 4) {
        EXPECT_TRUE(holds(d, buffers[i].address() + page, 4096, value, streams[i])) << schedule;
      }
      const auto idle = fence::after(d, streams[i]);
      ASSERT_TRUE(idle.has_value());
      ASSERT_TRUE(buffers[i].resize(page).has_value());
      ASSERT_TRUE(buffers[i].shrink_to_fit(*idle).has_value());
      EXPECT_TRUE(first_violation().empty()) << schedule << ": " << first_violation();
    }
  }
}

// What retires counts against the ceiling of mappings until it is undone; with the ceiling reached
// that is done, instead of refusing.
TEST_F(threads_race, RetiringMappingsMakeRoomAtTheCeiling) {
  for (const std::string &schedule : schedules(1, false)) {
    machine("memory=256M,mappings=32," + schedule);
    const device d = open_device();
    if (!d.capabilities().vmm) GTEST_SKIP() << "this device maps nothing: " << d.name();
    const auto s = stream::create(d);
    ASSERT_TRUE(s.has_value());
    buffer_options options;
    const std::size_t page = d.capabilities().page_bytes;
    options.reserve_bytes = 8 * page;
    for (int life = 0; life < 12; ++life) {
      auto b = growable_buffer::create(d, options);
      ASSERT_TRUE(b.has_value()) << schedule << ", " << life << ": " << b.error().message();
      const status grown = b->resize(6 * page, *s);
      ASSERT_TRUE(grown.has_value()) << schedule << ", " << life << ": " << grown.error().message();
      ASSERT_TRUE(fill(d, b->address(), 6 * page, 1, *s).has_value());
      const auto idle = fence::after(d, *s);
      ASSERT_TRUE(idle.has_value());
      ASSERT_TRUE(b->close(*idle).has_value());
      ASSERT_TRUE(s->synchronize().has_value());  // passed, and retiring still
    }
    EXPECT_EQ(first_violation(), "") << schedule;
  }
}

TEST_F(threads_race, TheAheadThreadAgainstItsBuffer) {
  for (const std::string &schedule : schedules(2, false)) {
    machine("memory=64M," + schedule);
    const device d = open_device();
    together(3, [&](std::size_t who) -> std::string {
      const auto s = stream::create(d);
      if (!s) return s.error().message();
      const std::size_t page = d.capabilities().page_bytes;
      std::mt19937 dice(static_cast<unsigned>(who + seed_of_run(1)));
      for (int life = 0; life < 4; ++life) {
        buffer_options options;
        options.reserve_bytes = 8 * page;
        options.map_ahead_bytes = 2 * page;
        auto buffer = growable_buffer::create(d, options);
        if (!buffer) return buffer.error().message();
        const std::size_t rounds = buffer->in_place() ? 12 : 4;
        for (std::size_t r = 0; r < rounds; ++r) {
          const std::size_t bytes = (dice() % 6) * page + 100;
          if (const status grown = buffer->resize(bytes, *s); !grown) {
            if (grown.error().is(errc::out_of_memory)) continue;
            return grown.error().message();
          }
          if (!fill(d, buffer->address(), bytes, static_cast<unsigned char>(r), *s)) {
            return "fill failed";
          }
          // Asked in this order: the thread ahead makes both more between one question and the
          // next.
          const std::size_t capacity = buffer->capacity();
          if (capacity < bytes) return "capacity under size";
          if (buffer->mapped_bytes() < capacity) return "mapped under capacity";
          if (dice() % 3 == 0) {
            const auto idle = fence::after(d, *s);
            if (!idle) return idle.error().message();
            const std::string wrong = shrink(*buffer, bytes, *idle);
            if (!wrong.empty()) return wrong;
          }
        }
        if (life % 2 == 0) {
          const auto idle = fence::after(d, *s);
          if (!idle || !buffer->close(*idle)) return "close failed";
        }
      }
      return "";
    });
    EXPECT_EQ(first_violation(), "") << schedule;
  }
}

}  // namespace
}  // namespace stillmap::testing
