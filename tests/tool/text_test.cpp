// Sizes as people write them, and what copying holds.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/demo/growth_run.h"

namespace stillmap::tool {
namespace {

TEST(Size, IsReadAsPeopleWriteIt) {
  const std::vector<std::pair<const char *, std::uint64_t>> good = {
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"1k", 1024},
      {"64M", 64u << 20},
      {"1.5G", 3u << 29},
      {"2 GiB", 2u << 30},
      {"16MB", 16u << 20},
      {"3T", std::uint64_t{3} << 40},
      {".5K", 512},
      {"8388607T", std::uint64_t{8388607} << 40}};
  for (const auto &[text, bytes] : good) {
    const auto size = parse_size(text);
    ASSERT_TRUE(size) << text << ": " << size.error().line;
    EXPECT_EQ(*size, bytes) << text;
  }
}

TEST(Size, SaysWhatIsWrong) {
  for (const char *text : {"", "x", "-1", "1X", "1.2.3M", ".", "0.3", "1 2x",
                           "99999999999999999999", "9000000T", "1MM", " 1", "1e9"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text << " = " << *size;
    EXPECT_EQ(size.error().status, exit_usage);
    EXPECT_NE(size.error().line.find(std::string("'") + text + "'"), std::string::npos);
  }
}

TEST(Copying, HoldsTheOldAndTheNewBufferAtOnce) {
  EXPECT_EQ(peak_of_copying(0, 16), 0u);
  EXPECT_EQ(peak_of_copying(10, 16), 10u);
  EXPECT_EQ(peak_of_copying(16, 16), 16u);
  EXPECT_EQ(peak_of_copying(17, 16), 48u);  // 16 and 32
  EXPECT_EQ(peak_of_copying(32, 16), 48u);
  EXPECT_EQ(peak_of_copying(33, 16), 96u);
}

}  // namespace
}  // namespace stillmap::tool
