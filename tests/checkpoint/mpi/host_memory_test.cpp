// Host allocations of one rank fail in turn while all ranks save: all return the same error, no rank
// waits for another, and no file is left. The ranks are this program, started by mpirun.
#include <gtest/gtest.h>

#if __has_include("stillmap/checkpoint/mpi/set.h") && __has_include(<mpi.h>)

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "stillmap/checkpoint/mpi/set.h"
#include "tests/support/buffer_test.h"
#include "tests/support/host_memory_sweep.h"

namespace stillmap::mpi {
namespace {

using stillmap::testing::fail_host_allocation;
using stillmap::testing::holds;
using stillmap::testing::one_in;

constexpr const char *folder_variable = "STILLMAP_TEST_MPI_HOST_MEMORY";

// Runs in each rank, started by the test below.
class rank_without_host_memory : public stillmap::testing::buffer_test {
 protected:
  static void SetUpTestSuite() {
    int got = 0;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &got), MPI_SUCCESS);
  }
  static void TearDownTestSuite() { MPI_Finalize(); }

  static int most(int mine) {
    int all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return all;
  }
};

TEST_F(rank_without_host_memory, DISABLED_saves) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const std::string folder = std::getenv(folder_variable);
  const growable_buffer b = filled(2, "weights", static_cast<unsigned>(rank));
  const std::vector<std::string> tags{"weights"};
  std::size_t points = 0;
  for (const int culprit : {0, 1}) {
    for (std::uint64_t n = 0;; n += one_in(5)) {
      SCOPED_TRACE("rank " + std::to_string(culprit) + ", allocation " + std::to_string(n));
      std::optional<fail_host_allocation> failing;
      if (rank == culprit) failing.emplace(n);
      const auto w = save(MPI_COMM_WORLD, dev(), tags, folder);
      const bool mine = failing && failing->happened();
      failing.reset();
      const bool happened = most(mine) != 0;
      EXPECT_EQ(most(!w) != 0, !w) << "another rank has another result";
      EXPECT_TRUE(w || w.error().is(errc::out_of_memory)) << w.error().message();
      EXPECT_TRUE(w || happened);
      EXPECT_EQ(std::filesystem::exists(folder), w.has_value());
      MPI_Barrier(MPI_COMM_WORLD);
      if (rank == 0) std::filesystem::remove_all(folder);
      MPI_Barrier(MPI_COMM_WORLD);
      if (!happened) break;
      ++points;
    }
  }
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), static_cast<unsigned>(rank)));
  if (rank == 0) std::ofstream(folder + ".points") << points;
}

TEST(mpi_without_host_memory, all_ranks_return_the_same_error) {
  if (std::system("command -v mpirun >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs mpirun, which is not here (openmpi-bin)";
  }
  std::string root = "/tmp/stillmap-mpi-XXXXXX";  // short: mpirun creates sockets in it
  ASSERT_NE(::mkdtemp(root.data()), nullptr);
  const std::string folder = root + "/a.stillmap", output = root + "/said";
  std::string command =
      "env -u XML_OUTPUT_FILE -u GTEST_OUTPUT -u TESTBRIDGE_TEST_ONLY "
      "-u TEST_PREMATURE_EXIT_FILE -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX "
      "OMPI_MCA_plm=isolated OMPI_MCA_btl=self,vader "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none";
  command += " HOME=" + root + " TMPDIR=" + root + " " + folder_variable + "=" + folder;
  if (const char *const asan = std::getenv("ASAN_OPTIONS")) {
    command += std::string(" ASAN_OPTIONS=") + asan + ":detect_leaks=0";  // MPI's own
  }
  command += " timeout -k 10 240 mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 ";
  command += std::filesystem::read_symlink("/proc/self/exe").string();
  command += " --gtest_also_run_disabled_tests --gtest_brief=1";
  command += " --gtest_filter=rank_without_host_memory.* >" + output + " 2>&1";
  const int ended = std::system(command.c_str());
  std::ifstream said(output);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0)
      << std::string(std::istreambuf_iterator<char>(said), {});
  std::size_t points = 0;
  std::ifstream(folder + ".points") >> points;
  EXPECT_GT(points, stillmap::testing::fewest_points(10));
  std::printf("note: host allocation sweep of mpi: %zu points%s\n", points,
              one_in(2) == 1 ? "" : " (one in 5)");
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace stillmap::mpi

#endif
