// Input streams: files read once and repeatedly, pipes, and unreadable input.
#include "tools/stillmap/common/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace stillmap::tool {
namespace {

class SourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("stillmap_source_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const char *name, const std::string &content) const {
    const auto path = folder_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  static std::string read_all(byte_source &s, std::size_t piece) {
    std::string out;
    std::vector<std::byte> chunk(piece);
    for (;;) {
      const auto n = s.read(chunk);
      EXPECT_TRUE(n) << n.error().line;
      if (!n || *n == 0) return out;
      out.append(reinterpret_cast<const char *>(chunk.data()), *n);
      if (*n < piece) {
        EXPECT_EQ(s.read(chunk).value(), 0u);  // short only at the end
        return out;
      }
    }
  }

  std::filesystem::path folder_;
};

TEST_F(SourceTest, AFileIsReadOnceAndAgain) {
  auto s = byte_source::open(file("a", "hello, world"));
  ASSERT_TRUE(s);
  EXPECT_TRUE(s->rereadable());
  EXPECT_EQ(s->file_bytes(), 12u);
  EXPECT_EQ(read_all(*s, 5), "hello, world");
  s->rewind();
  EXPECT_EQ(read_all(*s, 100), "hello, world");
}

TEST_F(SourceTest, AFileIsRepeatedInWholePassesUntilEnough) {
  const std::string name = file("a", "abc");
  auto s = byte_source::open(name, 7);
  ASSERT_TRUE(s);
  EXPECT_EQ(read_all(*s, 2), "abcabcabc");
  s->rewind();
  EXPECT_EQ(read_all(*s, 64), "abcabcabc");
  auto exactly = byte_source::open(name, 6);
  ASSERT_TRUE(exactly);
  EXPECT_EQ(read_all(*exactly, 4), "abcabc");
}

TEST_F(SourceTest, AnEmptyFileEndsEvenWhenMoreIsWanted) {
  auto s = byte_source::open(file("a", ""), 1000);
  ASSERT_TRUE(s);
  EXPECT_EQ(read_all(*s, 10), "");
}

TEST_F(SourceTest, APipeIsReadOnceWhateverSizesItComesIn) {
  const std::string name = (folder_ / "pipe").string();
  ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream out(name);
    for (int i = 0; i < 1000; ++i) out << "0123456789" << std::flush;
  });
  auto s = byte_source::open(name);
  ASSERT_TRUE(s);
  EXPECT_FALSE(s->rereadable());
  const std::string all = read_all(*s, 4096);
  writer.join();
  EXPECT_EQ(all.size(), 10000u);
  EXPECT_EQ(all.substr(9990), "0123456789");
}

TEST_F(SourceTest, WhatCannotBeReadIsRefusedByName) {
  for (const std::string &name : {(folder_ / "missing").string(), folder_.string()}) {
    const auto s = byte_source::open(name);
    ASSERT_FALSE(s) << name;
    EXPECT_EQ(s.error().status, name == folder_.string() ? exit_usage : exit_not_found);
    EXPECT_NE(s.error().line.find(name), std::string::npos) << s.error().line;
  }
  const auto twice = byte_source::open("/dev/null", 5);
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().line.find("only once"), std::string::npos) << twice.error().line;
}

TEST_F(SourceTest, TheLargestFileIsFound) {
  file("small.x", "1");
  const std::string large = file("large.x", "12345");
  file("larger.y", "1234567890");
  std::filesystem::create_directories(folder_ / "folder.x");
  EXPECT_EQ(largest_file({(folder_ / "*.x").string()}), large);
  EXPECT_EQ(largest_file({(folder_ / "*.z").string()}), "");
}

TEST_F(SourceTest, EveryMachineHasADefault) {
  auto s = byte_source::open_default(0);
  ASSERT_TRUE(s) << s.error().line;
  EXPECT_GT(s->file_bytes(), std::uint64_t{1} << 16);
}

}  // namespace
}  // namespace stillmap::tool
