// A buffer that grows from an input stream, and its check: input that can be read only once is
// compared by its digest.
#include "tools/stillmap/demo/growth_run.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/buffer_test.h"

namespace stillmap::tool {
namespace {

class growth_run_test : public testing::buffer_test {};

TEST_F(growth_run_test, a_wrong_byte_of_a_pipe_shows_in_the_digest) {
  const auto folder = std::filesystem::path(::testing::TempDir());
  const std::string name = (folder / ("pipe" + std::to_string(::getpid()))).string();
  auto vector = device_bytes::create(dev());
  ASSERT_TRUE(vector);
  ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(name, std::ios::binary);
    for (int i = 0; i < 100000; ++i) out << i << ' ';
  });
  auto source = byte_source::open(name);  // opening either end waits for the other
  const growth_limits limits{.chunk = 1000, .most = UINT64_MAX, .silent = true};
  // Pieces that the pipe and the chunks cut as they like, and the last one short.
  auto run = grow_from(*source, *vector, limits, "growing");
  writer.join();
  std::filesystem::remove(name);
  ASSERT_TRUE(run);
  EXPECT_TRUE(run->digest_used);
  ASSERT_EQ(vector->size(), 588890u);

  growth_limits other_pieces = limits;
  other_pieces.chunk = 4099;
  growth_run same = *run;
  ASSERT_TRUE(check_content(*source, *vector, other_pieces, same));
  EXPECT_EQ(same.seen.bytes_checked, vector->size());
  EXPECT_FALSE(same.seen.digests_differ);

  for (const std::size_t at : {std::size_t{0}, std::size_t{300000}, std::size_t{588889}}) {
    const auto was = vector->get(at);
    ASSERT_TRUE(was);
    ASSERT_TRUE(vector->set(at, *was ^ std::byte{1}));
    growth_run changed = *run;
    ASSERT_TRUE(check_content(*source, *vector, other_pieces, changed));
    EXPECT_TRUE(changed.seen.digests_differ) << at;
    ASSERT_TRUE(vector->set(at, *was));
  }
}

}  // namespace
}  // namespace stillmap::tool
