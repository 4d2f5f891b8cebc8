// Released pages that stay resident for the machine after hostcuda_reset(), as `keep=` says.
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "execution_fixture.h"

namespace hostcuda_tests {
namespace {

namespace fs = std::filesystem;

class kept_pages : public machine_test {
 protected:
  // Host memory of the files that hold device memory.
  static std::size_t resident() {
    std::size_t bytes = 0;
    for (const auto &fd : fs::directory_iterator("/proc/self/fd")) {
      std::error_code closed;
      struct stat what {};
      if (fs::read_symlink(fd, closed).string().rfind("/memfd:hostcuda-device", 0) == 0 &&
          stat(fd.path().c_str(), &what) == 0) {
        bytes += static_cast<std::size_t>(what.st_blocks) * 512;
      }
    }
    return bytes;
  }

  // What stays resident of 64 MiB that were written to and freed on a machine, on the one that follows.
  std::size_t after(const std::string &first, const std::string &second) {
    start("profile=h200," + first);
    CUdeviceptr block = 0;
    EXPECT_EQ(cuMemAlloc(&block, 64 * MiB), CUDA_SUCCESS);
    EXPECT_EQ(cuMemsetD8(block, 1, 64 * MiB), CUDA_SUCCESS);
    EXPECT_GE(resident(), 64 * MiB);
    EXPECT_EQ(cuMemFree(block), CUDA_SUCCESS);
    EXPECT_EQ(hostcuda_reset(("profile=h200," + second).c_str()), CUDA_SUCCESS);
    return resident();
  }
};

TEST_F(kept_pages, NoneWhereOneOfTheMachinesKeepsNone) {
  EXPECT_EQ(after("keep=0", "keep=0"), 0u);
  EXPECT_EQ(after("keep=0", "keep=64M"), 0u);
  EXPECT_EQ(after("keep=64M", "keep=0"), 0u);
}

TEST_F(kept_pages, AsManyAsBothMachinesKeep) {
  EXPECT_EQ(after("keep=64M", "keep=64M"), 64 * MiB);
  EXPECT_EQ(after("keep=64M", "keep=16M"), 16 * MiB);
}

}  // namespace
}  // namespace hostcuda_tests
