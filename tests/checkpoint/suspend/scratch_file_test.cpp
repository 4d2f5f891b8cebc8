// Contents that are suspended to a file on a disk that does not keep them.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "stillmap/checkpoint/suspend/internal/scratch_file.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"
#include "tests/support/op_sequence.h"

namespace {

// The most bytes of one read or write of this program; 0: no limit but the system's, which is 2 GiB.
std::atomic<std::size_t> most_at_once{0};

std::size_t shortened(std::size_t bytes) {
  const std::size_t most = most_at_once;
  return most != 0 ? std::min(bytes, most) : bytes;
}

}  // namespace

// In place of the C library's.
extern "C" ssize_t pread(int fd, void *to, std::size_t bytes, off_t at) {
  return ::syscall(SYS_pread64, fd, to, shortened(bytes), at);
}
extern "C" ssize_t pwrite(int fd, const void *from, std::size_t bytes, off_t at) {
  return ::syscall(SYS_pwrite64, fd, from, shortened(bytes), at);
}

namespace stillmap::checkpoint {
namespace {

using stillmap::testing::fails_with;
using stillmap::testing::holds;

// The unnamed file of this process in that directory.
class unnamed_file {
 public:
  explicit unnamed_file(const std::string &directory) {
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code none;
      const std::string to = std::filesystem::read_symlink(entry, none).string();
      if (to.rfind(directory + "/", 0) == 0) {
        fd_ = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
      }
    }
  }
  unnamed_file(const unnamed_file &) = delete;
  ~unnamed_file() { ::close(fd_); }

  bool found() const { return fd_ >= 0; }
  // Inverts one byte.
  void invert(off_t at) const {
    char byte = 0;
    ASSERT_EQ(::pread(fd_, &byte, 1, at), 1);
    byte = static_cast<char>(~byte);
    ASSERT_EQ(::pwrite(fd_, &byte, 1, at), 1);
  }

 private:
  int fd_ = -1;
};

class suspending_to_a_file : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    folder_ = std::string(::testing::TempDir()) + "/stillmap-suspended-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    // As /proc names it.
    folder_ = std::filesystem::canonical(folder_).string();
  }
  void TearDown() override {
    std::filesystem::remove(folder_);  // nothing is in it
    buffer_test::TearDown();
  }
  suspend_options to_file() const {
    suspend_options options;
    options.store = backing_store::file;
    options.directory = folder_;
    return options;
  }
  const std::string &folder() const { return folder_; }

 private:
  std::string folder_;
};

TEST(scratch_files, may_be_empty) {
  const auto made = checkpoint::scratch_file::create(::testing::TempDir(), 0);
  EXPECT_TRUE(made) << made.error().message();
}

TEST(scratch_files, are_read_and_written_whole_though_the_system_does_less) {
  constexpr std::size_t bytes = 4 * scratch_file::block_bytes;
  auto file = scratch_file::create(::testing::TempDir(), bytes);
  ASSERT_TRUE(file) << file.error().message();
  alignas(4096) static std::byte written[bytes], back[bytes];
  for (std::size_t i = 0; i < bytes; ++i) written[i] = static_cast<std::byte>(i / 4096 + i % 251);
  most_at_once = 3 * 4096;
  const status there = file->write(written, bytes, 0);
  const status again = file->read(back, bytes, 0);
  most_at_once = 0;
  ASSERT_TRUE(there) << there.error().message();
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_TRUE(std::equal(written, written + bytes, back));
}

TEST_F(suspending_to_a_file, contents_that_the_disk_changed_are_refused) {
  STILLMAP_NEEDS_VMM();
  growable_buffer weights = filled(5, "weights", 1);
  const auto tested = suspender::create(dev());
  ASSERT_TRUE(tested) << tested.error().message();
  ASSERT_DONE((*tested)->suspend("weights", to_file()));
  {
    const unnamed_file file(folder());
    ASSERT_TRUE(file.found());
    const auto at = static_cast<off_t>(3 * page() + 100);
    file.invert(at);
    // Says where, as an offset of the file, and maps nothing.
    const std::uint64_t block = 3 * page();
    EXPECT_TRUE(fails_with(stillmap::testing::outcome((*tested)->resume("weights")), errc::corrupt,
                           "suspender::resume", block, 0));
    EXPECT_EQ((*tested)->suspended().size(), 1u);
    file.invert(at);
  }
  ASSERT_DONE((*tested)->resume("weights"));
  EXPECT_TRUE(holds(dev(), weights.address(), 5 * page(), 1));
}

// What is read need not be what one write wrote: owners may have shrunk meanwhile.
TEST_F(suspending_to_a_file, what_is_left_of_the_memory_is_checked_too) {
  STILLMAP_NEEDS_VMM();
  growable_buffer weights = filled(7, "weights", 1);
  const auto tested = suspender::create(dev());
  ASSERT_TRUE(tested) << tested.error().message();
  ASSERT_DONE((*tested)->suspend("weights", to_file()));
  ASSERT_DONE(weights.resize(2 * page()));
  ASSERT_DONE(weights.shrink_to_fit());
  ASSERT_DONE((*tested)->resume("weights"));
  EXPECT_TRUE(holds(dev(), weights.address(), 2 * page(), 1));
}

}  // namespace
}  // namespace stillmap::checkpoint
