// What the allocator decides by numbers.
#include "stillmap/allocators/engine/policy.h"

#include <gtest/gtest.h>

namespace stillmap::policy {
namespace {

constexpr std::size_t page = 2 * MiB, peak = 40 * GiB;

TEST(policy, the_slack_of_a_loop_on_one_stream_is_a_40th) {
  for (const std::size_t moved : {std::size_t{0}, peak, 100 * peak}) {
    EXPECT_EQ(slack(peak, page, true, true, moved), GiB);
  }
  EXPECT_EQ(slack(0, page, true, true, 0), 2 * page);
  EXPECT_EQ(slack(MiB, page, false, false, 0), 2 * page);
}

TEST(policy, the_slack_of_what_varies_grows_with_what_moved_up_to_three_quarters) {
  EXPECT_EQ(slack(peak, page, false, true, peak / 4), GiB)
      << "nothing more until a quarter has moved";
  EXPECT_EQ(slack(peak, page, false, true, peak / 2), GiB + peak / 4);
  EXPECT_EQ(slack(peak, page, false, true, 100 * peak), GiB + peak / 4 * 3);
  std::size_t before = 0;
  for (std::size_t moved = 0; moved < peak; moved += GiB) {
    const std::size_t now = slack(peak, page, false, true, moved);
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST(policy, a_loop_on_several_streams_may_have_more) {
  EXPECT_GT(slack(peak, page, true, false, 2 * peak), GiB + peak);
  EXPECT_EQ(slack(peak, page, true, false, 1000 * peak), GiB + 64 * peak);
}

TEST(policy, memory_is_short_where_the_least_slack_does_not_fit) {
  EXPECT_TRUE(is_short(peak, peak, page));
  EXPECT_TRUE(is_short(peak + GiB - 1, peak, page));
  EXPECT_FALSE(is_short(peak + GiB, peak, page));
  EXPECT_TRUE(is_short(11 * page, 10 * page, page));
  EXPECT_FALSE(is_short(12 * page, 10 * page, page));
}

TEST(policy, what_varies_keeps_no_more_aliases_than_memory) {
  EXPECT_EQ(max_aliased(false, 0, page), GiB / 4);
  EXPECT_EQ(max_aliased(false, 8 * GiB, page), 8 * GiB + GiB / 4);
  EXPECT_EQ(max_aliased(true, 8 * GiB, page), 1024 * GiB);
}

TEST(policy, chunks_are_shared_as_segments_are) {
  EXPECT_EQ(shared_chunk_bytes(MiB), 2 * MiB);
  EXPECT_EQ(shared_chunk_bytes(MiB + 1), 20 * MiB);
  EXPECT_EQ(shared_chunk_bytes(10 * MiB), 0u) << "one of its own";
}

}  // namespace
}  // namespace stillmap::policy
