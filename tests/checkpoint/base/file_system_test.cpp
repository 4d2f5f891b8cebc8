// The system's file system, and one that overrides a part of it.
#include "stillmap/checkpoint/base/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

namespace stillmap::checkpoint {
namespace {

// Opens a file where a folder was asked for, which fdopendir() refuses.
class no_folder final : public file_system {
 public:
  explicit no_folder(std::string file) : file_(std::move(file)) {}
  int open_at(int, const char *, int, unsigned) override {
    ++open;
    return file_system::open_at(AT_FDCWD, file_.c_str(), O_RDONLY | O_CLOEXEC, 0);
  }
  int close(int fd) override {
    --open;
    return file_system::close(fd);
  }
  int open = 0;

 private:
  const std::string file_;
};

TEST(file_system, a_folder_that_cannot_be_read_is_an_error_and_is_closed) {
  const std::string file = ::testing::TempDir() + "stillmap-file-" + std::to_string(getpid());
  std::ofstream(file) << 'x';
  std::vector<std::string> names;
  EXPECT_EQ(file_system::system().names_in(AT_FDCWD, names), 0);
  EXPECT_FALSE(names.empty());
  no_folder files(file);
  names.clear();
  EXPECT_EQ(files.names_in(AT_FDCWD, names), -ENOTDIR);
  EXPECT_TRUE(names.empty());
  EXPECT_EQ(files.open, 0);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace stillmap::checkpoint
