// Contents that are suspended to a file on a disk that does not keep them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "stillmap/checkpoint/suspend/internal/scratch_file.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "tests/support/buffer_test.h"
#include "tests/support/op_sequence.h"

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
                           "checkpoint::scratch_file", block, 0));
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
