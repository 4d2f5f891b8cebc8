// Which files are read as keys.
#include "stillmap/checkpoint/base/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace stillmap::checkpoint {
namespace {

TEST(key_file, a_file_larger_than_any_key_is_not_read_in_part) {
  const std::string path = ::testing::TempDir() + "stillmap-key-" + std::to_string(getpid());
  for (const auto &[bytes, why] : {std::pair{256, "32 bytes"}, {257, "the file is too large"}}) {
    std::ofstream(path) << std::string(static_cast<std::size_t>(bytes), 'x');
    const auto key = read_key(path, secrecy::everybody);
    ASSERT_FALSE(key);
    EXPECT_TRUE(key.error().is(errc::invalid_argument));
    EXPECT_EQ(key.error().value, static_cast<std::uint64_t>(bytes));
    EXPECT_NE(key.error().message().find(why), std::string::npos) << key.error().message();
  }
  std::filesystem::remove(path);
}

// Regression: whoever asked a server to use a pipe as key kept it waiting for ever.
TEST(key_file, are_regular_files) {
  const std::string path = ::testing::TempDir() + "stillmap-key-" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const auto key = read_key(path, secrecy::owner);
  std::filesystem::remove(path);
  ASSERT_FALSE(key);
  EXPECT_TRUE(key.error().is(errc::not_supported)) << key.error().message();
  EXPECT_EQ(key.error().detail().subject, path);
}

}  // namespace
}  // namespace stillmap::checkpoint
