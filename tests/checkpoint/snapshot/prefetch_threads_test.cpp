// Signals and the thread of a digest_prefetch.
#include "stillmap/checkpoint/snapshot/internal/digest_prefetch.h"
#include "tests/support/buffer_test.h"
#include "tests/support/thread_signals.h"

namespace stillmap::snapshot {
namespace {

using prefetch_threads = testing::buffer_test;

TEST_F(prefetch_threads, run_no_handler_of_the_program) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(2 * page()));
  std::vector<virtual_range> chunks;
  for (std::size_t at = 0; at < b.size(); at += 64 << 10) {
    chunks.push_back({b.address() + at, 64 << 10});
  }
  // It may end before it is looked at.
  testing::new_threads found;
  for (int i = 0; found.seen == 0 && i < 300; ++i) {
    const auto before = testing::threads_so_far();
    const digest_prefetch ahead(dev(), chunks, {}, 1);
    found = testing::signals_of_new_threads(before);
  }
  EXPECT_GT(found.seen, 0);
  EXPECT_EQ(found.wrong, "");
}

}  // namespace
}  // namespace stillmap::snapshot
