// Reports and recorders without host memory: each host allocation of each of them fails once.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/report/heap_picture.h"
#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/allocators/trace/trace.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory.h"

namespace stillmap {
namespace {

using testing::fail_host_allocation;

class report_host_memory : public testing::buffer_test {
 protected:
  // Calls until no allocation fails. Each call fails, or its result is that of the last one. Returns
  // the number of allocations.
  template <class Call>
  std::uint64_t each_fails(Call call) {
    const auto whole = call();
    for (std::uint64_t n = 0;; ++n) {
      std::optional<decltype(call())> outcome;
      bool happened = false;
      try {
        fail_host_allocation failing(n);
        outcome.emplace(call());
        happened = failing.happened();
      } catch (const std::bad_alloc &) {
        ADD_FAILURE() << "std::bad_alloc left the library at allocation " << n;
        return n;
      }
      const bool done =
          outcome->has_value() && whole.has_value() && outcome->value() == whole.value();
      const bool refused = !*outcome && outcome->error().code == std::errc::not_enough_memory;
      if (!done && !(happened && refused)) {
        ADD_FAILURE() << "a wrong result without allocation " << n;
        return n;
      }
      if (!happened) return n;
    }
  }
};

TEST_F(report_host_memory, a_report_is_complete_or_an_error) {
  auto heap = caching_allocator::create(dev());
  ASSERT_DONE(heap);
  ASSERT_TRUE((*heap)->record_history({.events = 16, .stack_depth = 2}));
  ASSERT_TRUE((*heap)->allocate(300));
  const auto block = (*heap)->allocate(3 * page());
  ASSERT_DONE(block);
  ASSERT_TRUE((*heap)->free(*block));
  heap_snapshot seen;
  const auto taken = each_fails([&]() -> result<std::size_t> {
    auto copy = snapshot_of(**heap);
    if (!copy) return tl::unexpected<error>(copy.error());
    seen = std::move(*copy);
    return seen.map.arenas.front().extents.size();
  });
  EXPECT_GT(taken, 3u);
  EXPECT_GT(each_fails([&] { return to_json(seen); }), 10u);
  EXPECT_GT(each_fails([&] { return to_torch_pickle(seen); }), 3u);
  heap_picture p;
  p.title = "a heap without much memory beside it";
  p.columns.push_back({"one", "of the columns of the picture", seen.map});
  EXPECT_GT(each_fails([&] { return to_svg(p); }), 10u);
  EXPECT_GT(each_fails([&] { return to_html(p); }), 10u);
}

// A trace that lacks lines would be another program's: recording ends, and requests are served.
TEST_F(report_host_memory, a_trace_ends_where_it_cannot_be_continued) {
  expect_unreturnable();  // a background error
  const std::string path =
      ::testing::TempDir() + "stillmap-host-memory.trace." + std::to_string(getpid());
  std::filesystem::remove(path);
  {
    caching_allocator_options options;
    options.record_to = path;
    auto heap = caching_allocator::create(dev(), options);
    ASSERT_DONE(heap);
    ASSERT_TRUE((*heap)->allocate(300));
    const std::uint64_t before = background_error_count();
    for (std::uint64_t n = 0; background_error_count() == before && n < 1000; ++n) {
      fail_host_allocation failing(0, true);
      const auto block = (*heap)->allocate(300);
      failing.stop();
      EXPECT_TRUE(block || block.error().code == std::errc::not_enough_memory);
    }
    EXPECT_EQ(background_error_count(), before + 1);
    ASSERT_TRUE((*heap)->allocate(300));
  }
  std::ifstream in(path);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  EXPECT_TRUE(read_trace(text)) << text;
  EXPECT_GT(each_fails([&]() -> result<std::vector<trace_event>> {
              auto read = read_trace(text);
              if (!read) return tl::unexpected<error>(read.error());
              return std::move(read->events);
            }),
            0u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace stillmap
