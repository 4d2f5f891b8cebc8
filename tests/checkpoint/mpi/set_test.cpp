// Saves the memory of all ranks as one set and restores it in other ranks, completely or not at all.
// The ranks are this program, started by mpirun.
#include <gtest/gtest.h>

#if __has_include("stillmap/checkpoint/mpi/set.h") && __has_include(<mpi.h>)

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <ios>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/mpi/internal/collective.h"
#include "stillmap/checkpoint/mpi/set.h"
#include "tests/support/buffer_test.h"
#include "tests/support/far_away.h"

namespace stillmap::mpi {
namespace {

namespace fs = std::filesystem;
using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;

constexpr int ranks = 4;

std::string environment(const char *name) {
  const char *const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::size_t files_in(const std::string &folder) {
  if (!fs::exists(folder)) return 0;
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// ---- tests that run in each rank ----

// Started in each rank by the tests below.
class mpi_rank : public stillmap::testing::buffer_test {
 protected:
  static void SetUpTestSuite() {
    if (environment("STILLMAP_TEST_MPI").empty()) return;
    int got = 0;
    ASSERT_EQ(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &got), MPI_SUCCESS);
  }
  static void TearDownTestSuite() {
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (finalized == 0 && !environment("STILLMAP_TEST_MPI").empty()) MPI_Finalize();
  }
  void SetUp() override {
    ASSERT_FALSE(environment("STILLMAP_TEST_MPI").empty()) << "this is a rank's";
    buffer_test::SetUp();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  // Each rank has its own address, so that restoring another rank's image is noticed.
  device_address place() const {
    return device_address(stillmap::testing::far_away +
                          static_cast<std::uint64_t>(rank_) * (std::uint64_t{1} << 32));
  }
  growable_buffer memory(unsigned seed) const {
    buffer_options options;
    options.hint = place();
    options.reserve_bytes = std::size_t{64} << 20;
    options.tag = "weights";
    growable_buffer b = make(options);
    if (!b.resize(2 * page())) throw std::runtime_error("no memory");
    EXPECT_EQ(b.address(), place());
    put(dev(), b.address(), pattern(2 * page(), seed + static_cast<unsigned>(rank_)));
    return b;
  }
  bool restored_is(const snapshot::restored &r, unsigned seed) const {
    return r.memory.tagged("weights").at(0).begin == place() &&
           holds(dev(), place(), 2 * page(), seed + static_cast<unsigned>(rank_));
  }
  // A barrier: no rank changes what another still checks.
  void meet() const { MPI_Barrier(MPI_COMM_WORLD); }

  static std::string folder() { return environment("STILLMAP_TEST_MPI"); }
  const std::vector<std::string> tags_ = {"weights"};
  int rank_ = 0, size_ = 0;
};

// A file system that fails to rename one file.
class no_name_for final : public checkpoint::file_system {
 public:
  explicit no_name_for(std::string what) : what_(std::move(what)) {}
  int rename_at(int d, const char *from, const char *to, unsigned flags) override {
    if (std::string_view(to).starts_with(what_)) return -ENOSPC;
    return checkpoint::file_system::rename_at(d, from, to, flags);
  }

 private:
  const std::string what_;
};

TEST_F(mpi_rank, DISABLED_saves) {
  const growable_buffer b = memory(10);
  const auto w = save(MPI_COMM_WORLD, dev(), tags_, folder());
  EXPECT_TRUE(w) << w.error().message();
  if (w) {
    EXPECT_EQ(w->images.size(), static_cast<std::size_t>(size_));
    const auto there = image::read_set(folder());
    EXPECT_TRUE(there && there->set == w->set && there->images == w->images);
  }
  EXPECT_TRUE(holds(dev(), place(), 2 * page(), 10 + static_cast<unsigned>(rank_)));
  meet();
}

TEST_F(mpi_rank, DISABLED_restores) {
  const auto r = restore(MPI_COMM_WORLD, dev(), folder());
  EXPECT_TRUE(r) << r.error().message();
  EXPECT_TRUE(r && restored_is(*r, 10));
  meet();
}

// Each rank fails in turn, at each step.
TEST_F(mpi_rank, DISABLED_saves_where_one_fails) {
  const growable_buffer b = memory(20);
  const auto before = image::read_set(folder());
  const std::size_t files_before = files_in(folder());
  for (int step = 0; step < 4; ++step) {
    for (int culprit = 0; culprit < size_; ++culprit) {
      SCOPED_TRACE("step " + std::to_string(step) + " of rank " + std::to_string(culprit));
      if (step == 3 && culprit != 0) continue;
      const bool me = rank_ == culprit;
      no_name_for image_name("device-"), set_name("set");
      save_options options;
      options.snapshot.image.replace = true;
      std::vector<std::string> tags = tags_;
      if (me && step == 0) tags = {"nothing has this"};
      if (me && step == 1) {
        std::stop_source cancel;
        cancel.request_stop();
        options.snapshot.image.cancel = cancel.get_token();
      }
      if (me && step == 2) options.snapshot.image.files = &image_name;
      if (me && step == 3) options.snapshot.image.files = &set_name;
      const auto w = save(MPI_COMM_WORLD, dev(), tags, folder(), options);
      ASSERT_FALSE(w);
      EXPECT_EQ(w.error().detail().subject, "rank " + std::to_string(culprit))
          << w.error().message();
      const std::error_condition expected =
          step == 0   ? make_error_condition(errc::invalid_argument)
          : step == 1 ? make_error_condition(std::errc::operation_canceled)
                      : make_error_condition(std::errc::no_space_on_device);
      EXPECT_EQ(w.error().code, expected) << w.error().message();
      EXPECT_EQ(files_in(folder()), files_before) << w.error().message();
      const auto now = image::read_set(folder());
      EXPECT_EQ(now.has_value(), before.has_value());
      EXPECT_TRUE(!now || now->set == before->set);
      meet();
    }
  }
}

// Each rank has a folder of its own: rank 0 does not find the images of the others.
TEST_F(mpi_rank, DISABLED_saves_where_no_folder_is_shared) {
  const growable_buffer b = memory(40);
  const std::string mine = folder() + "." + std::to_string(rank_);
  if (rank_ != 0) fs::create_directory(mine);
  const auto w = save(MPI_COMM_WORLD, dev(), tags_, mine);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::corrupt)) << w.error().message();
  EXPECT_EQ(w.error().detail().subject, "rank 0");
  EXPECT_EQ(files_in(mine), 0u);
}

// Opens the image of rank 0 in place of that of rank 1.
class another_image final : public checkpoint::file_system {
 public:
  int open_at(int d, const char *name, int flags, unsigned mode) override {
    std::string path = name;
    const std::size_t at = path.find("/device-1.");
    if (at != std::string::npos) path.replace(at, 10, "/device-0.");
    return checkpoint::file_system::open_at(d, path.c_str(), flags, mode);
  }
};

TEST_F(mpi_rank, DISABLED_saves_where_rank_0_finds_another_image) {
  const growable_buffer b = memory(40);
  another_image calls;
  save_options options;
  if (rank_ == 0) options.snapshot.image.files = &calls;
  const auto w = save(MPI_COMM_WORLD, dev(), tags_, folder(), options);
  ASSERT_FALSE(w);
  EXPECT_TRUE(w.error().is(errc::corrupt)) << w.error().message();
  if (rank_ == 0) {
    EXPECT_NE(w.error().message().find("set at 0: mpi::save: not the image that the rank wrote"),
              std::string::npos)
        << w.error().message();
  }
  EXPECT_EQ(files_in(folder()), 0u);
}

TEST_F(mpi_rank, DISABLED_saves_another) {
  const growable_buffer b = memory(30);
  const auto refused = save(MPI_COMM_WORLD, dev(), tags_, folder());
  EXPECT_FALSE(refused) << "there is one";
  if (!refused) {
    EXPECT_EQ(refused.error().detail().subject, "rank " + std::to_string(0));
    EXPECT_EQ(refused.error().code, std::errc::file_exists);
  }
  save_options options;
  options.snapshot.image.replace = true;
  EXPECT_TRUE(save(MPI_COMM_WORLD, dev(), tags_, folder(), options));
  EXPECT_EQ(files_in(folder()), static_cast<std::size_t>(size_ + 1));
  // An incremental set in another folder.
  const auto set = image::read_set(folder());
  ASSERT_TRUE(set);
  const auto parent =
      image::open_in_set(folder(), *set, static_cast<std::uint32_t>(rank_), image::open_options());
  ASSERT_TRUE(parent);
  options.snapshot.image.parent = *parent;
  const auto over_parent = save(MPI_COMM_WORLD, dev(), tags_, folder(), options);
  EXPECT_TRUE(!over_parent && over_parent.error().is(errc::invalid_argument));
  const auto later = save(MPI_COMM_WORLD, dev(), tags_, folder() + ".later/", options);
  EXPECT_TRUE(later && later->mine.stored_bytes == 0);
  meet();
}

TEST_F(mpi_rank, DISABLED_restores_where_one_address_is_taken) {
  for (int culprit = 0; culprit < size_; ++culprit) {
    {
      std::optional<growable_buffer> in_the_way;
      if (rank_ == culprit) in_the_way = memory(50);
      const auto r = restore(MPI_COMM_WORLD, dev(), folder());
      ASSERT_FALSE(r);
      EXPECT_EQ(r.error().detail().subject, "rank " + std::to_string(culprit));
      EXPECT_TRUE(r.error().is(errc::busy)) << r.error().message();
      EXPECT_EQ(dev().space().stats().live_blocks, rank_ == culprit ? 1u : 0u);
    }
    ASSERT_TRUE(dev().pool()->trim());
    dev().space().collect(true);
    meet();
  }
  snapshot::restore_options options;
  if (rank_ == 1) {
    std::stop_source cancel;
    cancel.request_stop();
    options.cancel = cancel.get_token();
  }
  {
    const auto r = restore(MPI_COMM_WORLD, dev(), folder(), options);
    ASSERT_FALSE(r);
    EXPECT_EQ(r.error().detail().subject, "rank " + std::to_string(1));
    EXPECT_EQ(r.error().code, std::errc::operation_canceled);
    EXPECT_EQ(dev().space().stats().live_blocks, 0u);
    EXPECT_EQ(dev().space().stats().physical.bytes(), 0u);
  }
  EXPECT_TRUE(restore(MPI_COMM_WORLD, dev(), folder()));
  meet();
}

TEST_F(mpi_rank, DISABLED_restores_a_set_of_others) {
  const auto r = restore(MPI_COMM_WORLD, dev(), folder());
  EXPECT_FALSE(r);
  if (!r) {
    EXPECT_TRUE(r.error().is(errc::invalid_argument));
    EXPECT_NE(r.error().message().find("found 4, expected 3"), std::string::npos)
        << r.error().message();
  }
  meet();
}

TEST_F(mpi_rank, DISABLED_dies_while_it_saves) {
  const growable_buffer b = memory(60);
  save_options options;
  options.snapshot.image.replace = true;
  if (rank_ == 2) {
    options.snapshot.image.on_progress = [](const image::write_progress &) { ::_exit(9); };
  }
  const auto w = save(MPI_COMM_WORLD, dev(), tags_, folder(), options);
  ADD_FAILURE() << "rank " << rank_ << " came back" << (w ? " with a set" : "");
}

TEST_F(mpi_rank, DISABLED_agrees_on_codes) {
  const auto all = collective::create(MPI_COMM_WORLD);
  ASSERT_TRUE(all) << all.error().message();
  const struct {
    std::error_code failed, agreed;
  } codes[] = {
      {make_error_code(errc::busy), make_error_code(errc::busy)},
      {{2, cuda_category()}, {2, cuda_category()}},
      {{ENOSPC, std::system_category()}, {ENOSPC, std::system_category()}},
      {{ENOSPC, std::generic_category()}, {ENOSPC, std::system_category()}},
      {{1, std::iostream_category()}, make_error_code(std::errc::io_error)},
  };
  for (int culprit = 0; culprit < size_; ++culprit) {
    for (const auto &c : codes) {
      status mine;
      if (rank_ == culprit) mine = tl::unexpected(error{c.failed, "test", "it fails"});
      const status s = all->all_agree(mine);
      ASSERT_FALSE(s);
      EXPECT_EQ(s.error().code, c.agreed) << c.failed << " became " << s.error().message();
      EXPECT_EQ(s.error().detail().subject, "rank " + std::to_string(culprit));
    }
  }
  EXPECT_TRUE(all->all_agree({}));
}

// MPI tells a communicator's attribute of each copy of it that is made and freed.
struct communicator_copies {
  static inline int made = 0, freed = 0;
  static int on_copy(MPI_Comm, int, void *, void *value, void *copy, int *kept) {
    ++made;
    *static_cast<void **>(copy) = value;
    *kept = 1;
    return MPI_SUCCESS;
  }
  static int on_free(MPI_Comm, int, void *, void *) {
    ++freed;
    return MPI_SUCCESS;
  }
};

TEST_F(mpi_rank, DISABLED_leaves_no_communicator) {
  int key = MPI_KEYVAL_INVALID;
  ASSERT_EQ(MPI_Comm_create_keyval(&communicator_copies::on_copy, &communicator_copies::on_free,
                                   &key, nullptr),
            MPI_SUCCESS);
  MPI_Comm mine = MPI_COMM_NULL;
  ASSERT_EQ(MPI_Comm_dup(MPI_COMM_WORLD, &mine), MPI_SUCCESS);
  ASSERT_EQ(MPI_Comm_set_attr(mine, key, nullptr), MPI_SUCCESS);
  const growable_buffer b = memory(10);
  EXPECT_TRUE(save(mine, dev(), tags_, folder()));
  EXPECT_GT(communicator_copies::made, 0);
  EXPECT_EQ(communicator_copies::freed, communicator_copies::made);
  MPI_Comm_free(&mine);
  MPI_Comm_free_keyval(&key);
}

TEST_F(mpi_rank, DISABLED_needs_mpi) {
  const auto no_ranks = save(MPI_COMM_NULL, dev(), tags_, folder());
  ASSERT_FALSE(no_ranks);
  EXPECT_TRUE(no_ranks.error().is(errc::invalid_argument));
}

TEST_F(mpi_rank, DISABLED_needs_mpi_that_is_not_finalised) {
  const growable_buffer b = memory(10);
  MPI_Finalize();
  const auto late = save(MPI_COMM_WORLD, dev(), tags_, folder());
  ASSERT_FALSE(late);
  EXPECT_TRUE(late.error().is(errc::invalid_argument)) << late.error().message();
}

// ---- tests that start the ranks ----

class mpi_sets : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0) {
      GTEST_SKIP() << "needs mpirun, which is not here (openmpi-bin)";
    }
    // A short path, because mpirun creates sockets in it.
    std::string name = "/tmp/stillmap-mpi-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override {
    if (!root_.empty()) fs::remove_all(root_);
  }

  std::string folder() const { return root_ + "/a.stillmap"; }

  // Whether all ranks succeeded.
  ::testing::AssertionResult run(const char *what, int n = ranks) const {
    std::string command = "env -u XML_OUTPUT_FILE -u GTEST_OUTPUT -u TESTBRIDGE_TEST_ONLY";
    command += " -u TEST_PREMATURE_EXIT_FILE -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX";
    command += " HOME=" + root_ + " TMPDIR=" + root_ + " OMPI_MCA_plm=isolated";
    command += " OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none";
    command += " STILLMAP_TEST_MPI=" + folder();
    // MPI leaks memory of its own.
    command += " ASAN_OPTIONS=" + environment("ASAN_OPTIONS") + ":detect_leaks=0";
    command += " timeout -k 10 240 mpirun --allow-run-as-root --oversubscribe --bind-to none -n ";
    command += std::to_string(n) + " " + fs::read_symlink("/proc/self/exe").string();
    command += " --gtest_also_run_disabled_tests --gtest_brief=1 --gtest_filter=mpi_rank.DISABLED_";
    command += std::string(what) + " >" + root_ + "/said 2>&1";
    const int wait_status = std::system(command.c_str());
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0)
      return ::testing::AssertionSuccess();
    std::string said;
    if (std::FILE *const f = std::fopen((root_ + "/said").c_str(), "r")) {
      char piece[4096];
      for (std::size_t got; (got = std::fread(piece, 1, sizeof piece, f)) > 0;) {
        said.append(piece, got);
      }
      std::fclose(f);
    }
    return ::testing::AssertionFailure() << what << ": " << wait_status << "\n" << said;
  }

  // Checks that the folder holds a set of n whole images.
  void expect_set(int n = ranks) const {
    const auto there = image::open_set(folder());
    ASSERT_TRUE(there) << there.error().message();
    EXPECT_EQ(there->size(), static_cast<std::size_t>(n));
    for (const image::reader &r : *there) EXPECT_TRUE(r.verify());
    EXPECT_EQ(files_in(folder()), static_cast<std::size_t>(n + 1));
  }

 private:
  std::string root_;
};

TEST_F(mpi_sets, all_ranks_commit_and_other_ranks_have_it) {
  ASSERT_TRUE(run("saves"));
  expect_set();
  EXPECT_TRUE(run("restores"));
  EXPECT_TRUE(run("restores_a_set_of_others", ranks - 1));
  EXPECT_TRUE(run("restores_where_one_address_is_taken"));
}

TEST_F(mpi_sets, an_error_has_the_same_code_on_all_ranks) {
  EXPECT_TRUE(run("agrees_on_codes", 2));
}

TEST_F(mpi_sets, communicators_are_freed) {
  EXPECT_TRUE(run("leaves_no_communicator", 2));
}

TEST_F(mpi_sets, where_one_fails_none_commits) {
  ASSERT_TRUE(run("saves_where_one_fails"));
  EXPECT_FALSE(fs::exists(folder()));
  ASSERT_TRUE(run("saves"));
  ASSERT_TRUE(run("saves_where_one_fails"));
  expect_set();
  EXPECT_TRUE(run("restores")) << "the old set";
  EXPECT_TRUE(run("needs_mpi", 2));
  EXPECT_TRUE(run("needs_mpi_that_is_not_finalised", 2));
}

TEST_F(mpi_sets, images_that_rank_0_does_not_find_are_removed_by_their_ranks) {
  EXPECT_TRUE(run("saves_where_no_folder_is_shared", 2));
  EXPECT_TRUE(run("saves_where_rank_0_finds_another_image", 2));
}

TEST_F(mpi_sets, a_set_is_replaced_and_added_to) {
  ASSERT_TRUE(run("saves"));
  ASSERT_TRUE(run("saves_another"));
  expect_set();
}

TEST_F(mpi_sets, a_rank_that_dies_leaves_the_old_set) {
  ASSERT_TRUE(run("saves"));
  const auto before = image::read_set(folder());
  ASSERT_TRUE(before);
  EXPECT_FALSE(run("dies_while_it_saves"));
  const auto now = image::read_set(folder());
  ASSERT_TRUE(now);
  EXPECT_EQ(now->set, before->set);
  EXPECT_TRUE(run("restores"));
  ASSERT_TRUE(run("saves_another"));
  expect_set();
}

}  // namespace
}  // namespace stillmap::mpi

#else

TEST(mpi_sets, all_ranks_commit_and_other_ranks_have_it) {
  GTEST_SKIP() << "built without MPI (libopenmpi-dev)";
}

#endif
