#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/driver.h"
#include "stillmap/vmm/driver/search_paths.h"
#include "stillmap/vmm/driver/table.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap {
namespace {

namespace fs = std::filesystem;

// A folder that goes when the test does.
class scratch {
 public:
  scratch() {
    std::string name = (fs::temp_directory_path() / "stillmap-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~scratch() { fs::remove_all(path_); }
  fs::path operator/(const char *name) const { return path_ / name; }

 private:
  fs::path path_;
};

error failure_of(const std::string &which) {
  const auto loaded = driver::load(which);
  return loaded ? error{{}, "", "it loaded", 0, 0} : loaded.error();
}

class driver_load : public testing::device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !on_hostcuda()) GTEST_SKIP() << "about hostcuda";
  }
};

TEST_F(driver_load, is_the_same_object_every_time) {
  EXPECT_EQ(*driver::get(), *driver::get());
  EXPECT_EQ(*driver::load("host"), *driver::get());
  EXPECT_EQ(*driver::load(driver().path()), *driver::get());
}

TEST_F(driver_load, knows_one_file_under_two_names) {
  const scratch folder;
  fs::create_symlink(fs::absolute(driver().path()), folder / "libother.so");
  EXPECT_EQ(*driver::load((folder / "libother.so").string()), &driver());
}

struct run_of_a_test {
  int how = -1;  // as waitpid() says it
  std::string said;
};
// Runs one test in a new process of this program, under a name without a slash, as the shell does with a
// program that it finds in PATH. The process calls `prepare` first.
run_of_a_test run_again(const std::string &test, const std::function<bool()> &prepare,
                        const fs::path &copy = "/proc/self/exe") {
  run_of_a_test run;
  int ends[2];
  if (::pipe(ends) != 0) return run;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    const std::string program =
        fs::is_symlink(copy) ? fs::read_symlink(copy).string() : copy.string();
    const std::string filter = "--gtest_filter=" + test;
    if (prepare()) ::execl(program.c_str(), "planted", filter.c_str(), nullptr);
    ::_exit(2);
  }
  ::close(ends[1]);
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
    run.said.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  ::waitpid(child, &run.how, 0);
  return run;
}

// Regression: where hostcuda did not load, every test was skipped, and ./test passed.
TEST_F(driver_load, a_test_that_does_not_get_the_hostcuda_it_needs_fails) {
  const auto run = run_again("driver_load.is_the_same_object_every_time",
                             [] { return ::setenv("STILLMAP_HOSTCUDA", "/dev/null", 1) == 0; });
  EXPECT_TRUE(WIFEXITED(run.how) && WEXITSTATUS(run.how) == 1) << run.how;
  EXPECT_NE(run.said.find("STILLMAP_DRIVER=host, but "), std::string::npos) << run.said;
}

// Regression: a misspelled --test_filter passed.
TEST(test_filter, that_matches_nothing_fails) {
  const auto status = [](const char *variable, const char *value) {
    const auto run = run_again("no_such_suite.*", [&] {
      ::unsetenv("STILLMAP_TEST_NO_MATCH");
      ::setenv("GTEST_TOTAL_SHARDS", "2", 1);
      ::setenv("GTEST_SHARD_INDEX", "0", 1);
      return ::setenv(variable, value, 1) == 0;
    });
    EXPECT_TRUE(WIFEXITED(run.how));
    return WEXITSTATUS(run.how);
  };
  EXPECT_EQ(status("GTEST_SHARD_INDEX", "0"), 1);
  EXPECT_EQ(status("GTEST_SHARD_INDEX", "1"), 0) << "where the first shard may have matches";
  EXPECT_EQ(status("STILLMAP_TEST_NO_MATCH", "ok"), 0);
}

// What this program would look for as hostcuda if it was started in `folder`.
std::string candidates_in(const fs::path &folder) {
  return run_again("driver_candidates.are_not_looked_for_in_the_current_directory",
                   [&] {
                     ::unsetenv("STILLMAP_HOSTCUDA");
                     ::unsetenv("RUNFILES_DIR");
                     ::setenv("STILLMAP_TEST_CANDIDATES", "1", 1);
                     return ::chdir(folder.c_str()) == 0;
                   })
      .said;
}

// Regression: `cd shared; stillmap doctor` ran the library hostcuda/libcuda.so.1 beside shared.
TEST(driver_candidates, are_not_looked_for_in_the_current_directory) {
  if (std::getenv("STILLMAP_TEST_CANDIDATES") != nullptr) {
    for (const std::string &path : driver_search::simulator_candidates()) {
      std::printf("candidate %s\n", path.c_str());
    }
    std::fflush(stdout);
    ::_exit(0);
  }
  const scratch folder;
  fs::create_directory(folder / "shared");
  const std::string said = candidates_in(folder / "shared");
  EXPECT_NE(said.find("candidate /"), std::string::npos) << said;
  EXPECT_EQ(said.find("shared"), std::string::npos) << said;
}

// Regression: STILLMAP_DRIVER=libcuda.so.1 opened the file of that name in the current directory.
TEST_F(driver_load, looks_for_a_bare_file_name_as_the_dynamic_linker_does) {
  constexpr const char *name = "libsomewhere.so", *variable = "STILLMAP_TEST_BARE";
  if (std::getenv(variable) != nullptr) {
    const auto found = driver::load(name);
    std::printf("found %s\n", found ? (*found)->path().c_str() : found.error().message().c_str());
    std::fflush(stdout);
    ::_exit(0);
  }
  const scratch searched, current;
  const std::string wanted = (searched / name).string();
  fs::copy_file(driver().path(), wanted);
  const auto said_in = [&](const fs::path &folder) {
    return run_again("driver_load.looks_for_a_bare_file_name_as_the_dynamic_linker_does",
                     [&] {
                       ::setenv("STILLMAP_HOSTCUDA", fs::absolute(driver().path()).c_str(), 1);
                       ::setenv("LD_LIBRARY_PATH", (searched / "").c_str(), 1);
                       ::setenv(variable, "1", 1);
                       return ::chdir(folder.c_str()) == 0;
                     })
        .said;
  };
  EXPECT_NE(said_in(current / "").find("found " + wanted + '\n'), std::string::npos);
  std::ofstream(current / name) << "planted";
  const std::string said = said_in(current / "");
  EXPECT_NE(said.find("found " + wanted + '\n'), std::string::npos) << said;
}

// Regression: an error said that hostcuda was not found, and not where it had been looked for.
TEST(driver_candidates, are_listed_where_none_is_there) {
  if (std::getenv("STILLMAP_TEST_CANDIDATES") != nullptr) {
    std::printf("%s\n", failure_of("host").message().c_str());
    std::fflush(stdout);
    ::_exit(0);
  }
  const scratch folder;
  const std::string missing = (folder / "libcuda.so.1").string();
  const auto said_by = [&](const fs::path &program) {
    return run_again(
               "driver_candidates.are_listed_where_none_is_there",
               [&] {
                 ::setenv("STILLMAP_TEST_CANDIDATES", "1", 1);
                 return ::setenv("STILLMAP_HOSTCUDA", missing.c_str(), 1) == 0;
               },
               program)
        .said;
  };
  const std::string said = said_by("/proc/self/exe");
  EXPECT_NE(said.find("hostcuda was not found"), std::string::npos) << said;
  EXPECT_NE(said.find("tried " + missing), std::string::npos) << said;
  EXPECT_EQ(said.find("pip"), std::string::npos) << said;
  // In a Python package, its users have no other hostcuda than that of a package.
  std::ofstream(folder / "__init__.py") << "";
  fs::copy_file("/proc/self/exe", folder / "program");
  const std::string in_package = said_by(folder / "program");
  EXPECT_NE(in_package.find("hostcuda/python/wheel.sh && pip install"), std::string::npos)
      << in_package;
  EXPECT_NE(in_package.find("tried " + missing), std::string::npos) << in_package;
}

// The dynamic linker has the hostcuda of this test open under this very name.
TEST_F(driver_load, does_not_take_the_open_hostcuda_for_a_bare_name) {
  EXPECT_FALSE(driver::load("libcuda.so.1") == &driver());
}

TEST_F(driver_load, does_not_take_the_open_hostcuda_for_the_machines_driver) {
  const auto system = driver::load("cuda");
  if (!system) {
    EXPECT_TRUE(system.error().is(errc::not_supported));
  } else {
    EXPECT_NE(*system, &driver());
  }
}

TEST_F(driver_load, refuses_what_is_missing_or_no_library) {
  const scratch folder;
  const std::string text = (folder / "text.so").string();
  std::ofstream(text) << "not a library";
  for (const std::string &path : {(folder / "missing.so").string(), text, std::string("/")}) {
    const error e = failure_of(path);
    EXPECT_TRUE(e.is(errc::not_supported)) << path;
    EXPECT_TRUE(e.message().starts_with("driver::load: no driver library could be opened: install"))
        << e.message();
    EXPECT_NE(e.message().find("STILLMAP_HOSTCUDA=path"), std::string::npos);
  }
}

TEST_F(driver_load, refuses_a_library_that_is_no_driver) {
  void *libm = dlopen("libm.so.6", RTLD_NOW);
  ASSERT_NE(libm, nullptr);
  Dl_info info = {};
  ASSERT_NE(dladdr(dlsym(libm, "cos"), &info), 0);
  const error e = failure_of(info.dli_fname);
  EXPECT_TRUE(e.is(errc::not_supported));
  EXPECT_STREQ(e.reason, "not a CUDA driver: cuDriverGetVersion is missing");
}

// A second hostcuda, as a driver that misbehaves while it is being loaded.
class second_driver : public driver_load {
 protected:
  void SetUp() override {
    driver_load::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    path_ = (folder_ / "libsecond.so").string();
    fs::copy_file(driver().path(), path_);
    library_ = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
    fail_ = reinterpret_cast<decltype(fail_)>(dlsym(library_, "hostcuda_fail"));
    ASSERT_NE(fail_, nullptr);
  }
  // Every test has a copy of its own, which is a library of its own to the dynamic linker.
  scratch folder_;
  std::string path_;
  void *library_ = nullptr;
  CUresult (*fail_)(const char *, uint64_t, CUresult) = nullptr;
};

TEST_F(second_driver, has_the_path_that_the_dynamic_linker_opened) {
  const std::string link = (folder_ / "liblink.so").string();
  fs::create_symlink(path_, link);
  const auto loaded = driver::load(link);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ((*loaded)->path(), path_);
}

TEST_F(second_driver, that_is_the_toolkits_stub_is_refused_by_name) {
  ASSERT_EQ(fail_("cuDriverGetVersion", 1, CUDA_ERROR_STUB_LIBRARY), CUDA_SUCCESS);
  const error e = failure_of(path_);
  EXPECT_TRUE(e.is(errc::not_supported));
  EXPECT_STREQ(e.reason, "CUDA_ERROR_STUB_LIBRARY");
}

TEST_F(second_driver, that_refuses_to_initialise_is_refused_but_not_for_ever) {
  ASSERT_EQ(fail_("cuInit", 1, CUDA_ERROR_NO_DEVICE), CUDA_SUCCESS);
  const error e = failure_of(path_);
  EXPECT_TRUE(e.is(errc::not_supported));
  EXPECT_STREQ(e.operation, "cuInit");
  EXPECT_STREQ(e.reason, "CUDA_ERROR_NO_DEVICE");

  const auto again = driver::load(path_);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_NE(*again, &driver());
  EXPECT_TRUE((*again)->is_simulator());
}

TEST_F(second_driver, that_cannot_count_its_devices_makes_open_fail_with_its_error) {
  const auto other = driver::load(path_);
  ASSERT_TRUE(other) << other.error().message();
  ASSERT_EQ(fail_("cuDeviceGetCount", 1, CUDA_ERROR_SYSTEM_NOT_READY), CUDA_SUCCESS);
  const auto opened = device::open(**other, 0);
  ASSERT_FALSE(opened);
  EXPECT_STREQ(opened.error().operation, "cuDeviceGetCount");
  EXPECT_EQ(opened.error().code.value(), CUDA_ERROR_SYSTEM_NOT_READY);
}

TEST_F(driver_load, finds_what_the_drivers_version_has_and_no_more) {
  // Functions above the oldest version we accept, with the version that introduced them.
  const struct {
    driver_call call;
    int since;
  } dated[] = {{driver_call::Init, 2000},
               {driver_call::StreamIsCapturing, 10000},
               {driver_call::ThreadExchangeStreamCaptureMode, 10010},
               {driver_call::MemCreate, 10020},
               {driver_call::MemRetainAllocationHandle, 11000},
               {driver_call::MemAllocAsync, 11020},
               {driver_call::MemFreeAsync, 11020}};
  for (const auto &d : dated) {
    EXPECT_EQ(driver().has(d.call), driver().version() >= d.since) << name_of(d.call);
  }
}

TEST_F(driver_load, refuses_a_missing_function_by_name_without_calling) {
  if (driver().has(driver_call::MemAllocAsync)) GTEST_SKIP() << "this driver has cuMemAllocAsync";
  const std::uint64_t before = testing::hostcuda_control::calls(nullptr);
  const auto at = driver().allocate_async(512, nullptr);
  ASSERT_FALSE(at);
  EXPECT_TRUE(at.error().is(errc::not_supported));
  EXPECT_STREQ(at.error().operation, "cuMemAllocAsync");
  EXPECT_EQ(testing::hostcuda_control::calls(nullptr), before);
}

TEST_F(driver_load, agrees_with_the_driver_on_the_names_of_errors) {
  int known = 0;
  for (int code = 0; code < 1000; ++code) {
    const char *theirs = nullptr;
    if (driver().table().GetErrorName(static_cast<CUresult>(code), &theirs) != CUDA_SUCCESS)
      continue;
    ++known;
    EXPECT_STREQ(describe_cuda_error(code).name, theirs) << code;
  }
  EXPECT_GT(known, 50);
}

TEST_F(driver_load, counts_calls_and_only_the_bytes_that_moved) {
  const device d = open_device();
  const context_guard guard(driver(), d.context());
  const auto at = driver().allocate(8192);
  ASSERT_TRUE(at) << at.error().message();
  char bytes[4096] = "still";
  const driver_counts before = driver().counts();
  EXPECT_TRUE(driver().copy_to_device(*at, bytes, 4096));
  EXPECT_TRUE(driver().copy_on_device(*at + 4096, *at, 1024));
  EXPECT_TRUE(driver().copy_to_host(bytes, *at + 4096, 512));
  EXPECT_FALSE(driver().copy_to_host(bytes, device_address(4096), 100));  // nothing is there
  const driver_counts moved = driver().counts() - before;
  EXPECT_EQ(moved[driver_call::MemcpyHtoD], 1u);
  EXPECT_EQ(moved[driver_call::MemcpyDtoD], 1u);
  EXPECT_EQ(moved[driver_call::MemcpyDtoH], 2u);
  EXPECT_EQ(moved.total(), 4u);
  EXPECT_EQ(moved.bytes_to_device, 4096u);
  EXPECT_EQ(moved.bytes_on_device, 1024u);
  EXPECT_EQ(moved.bytes_to_host, 512u);
  EXPECT_STREQ(bytes, "still");
  EXPECT_TRUE(driver().free(*at));

  driver().reset_counts();
  EXPECT_EQ(driver().counts().total(), 0u);
  EXPECT_EQ(driver().counts().bytes_to_device, 0u);
}

TEST_F(driver_load, refuses_null_host_pointers_before_the_driver_follows_them) {
  const driver_counts before = driver().counts();
  for (const status &s : {driver().copy_to_device(device_address(4096), nullptr, 8),
                          driver().copy_to_host(nullptr, device_address(4096), 8),
                          driver().copy_to_device_async(device_address(4096), nullptr, 8, nullptr),
                          driver().copy_to_host_async(nullptr, device_address(4096), 8, nullptr)}) {
    ASSERT_FALSE(s);
    EXPECT_TRUE(s.error().is(errc::invalid_argument));
    EXPECT_EQ(s.error().value, 8u);
    EXPECT_EQ(s.error().limit, 0u) << "none";
  }
  EXPECT_EQ((driver().counts() - before).total(), 0u);
}

TEST_F(driver_load, out_of_memory_says_what_was_asked_and_what_was_free) {
  const device d = open_device();
  const context_guard guard(driver(), d.context());
  const auto now = driver().memory_info_now();
  ASSERT_TRUE(now);
  const std::size_t too_much =
      round_up(static_cast<std::size_t>(d.total_memory().bytes()) * 2, d.capabilities().page_bytes);
  const auto at = driver().allocate(too_much);
  ASSERT_FALSE(at);
  EXPECT_TRUE(at.error().is(errc::out_of_memory));
  EXPECT_EQ(at.error().value, too_much);
  EXPECT_EQ(at.error().limit, now->free.bytes());
  if (!d.capabilities().vmm) return;
  const auto page = driver().create_physical(too_much, {on_device(0), handle_type::none, false});
  ASSERT_FALSE(page);
  EXPECT_TRUE(page.error().is(errc::out_of_memory));
  EXPECT_EQ(page.error().limit, now->free.bytes());
}

TEST_F(driver_load, running_out_of_addresses_is_not_running_out_of_memory) {
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "this device has no virtual memory management";
  const context_guard guard(driver(), d.context());
  testing::hostcuda_control::fail("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const auto at = driver().reserve_addresses(d.capabilities().page_bytes, 0, device_address());
  ASSERT_FALSE(at);
  EXPECT_TRUE(at.error().is(errc::address_space_exhausted));
  EXPECT_FALSE(at.error().is(errc::out_of_memory));
  EXPECT_NE(at.error().message().find("cuMemAddressReserve: CUDA_ERROR_OUT_OF_MEMORY"),
            std::string::npos);
}

TEST_F(driver_load, physical_properties_survive_the_round_trip) {
  const device d = open_device();
  if (!d.capabilities().vmm || !d.capabilities().posix_fd_export)
    GTEST_SKIP() << "needs pages that can be exported";
  const context_guard guard(driver(), d.context());
  for (const handle_type exportable :
       {handle_type::none, handle_type::posix_fd, handle_type::fabric}) {
    const physical_properties wanted{on_device(0), exportable, false};
    const auto page = driver().create_physical(d.capabilities().page_bytes, wanted);
    if (!page && exportable == handle_type::fabric) continue;  // needs an NVLink fabric
    ASSERT_TRUE(page) << page.error().message();
    const auto echoed = driver().properties(*page);
    ASSERT_TRUE(echoed);
    EXPECT_EQ(*echoed, wanted);
    EXPECT_TRUE(driver().release_physical(*page));
  }
}

TEST_F(driver_load, access_to_many_devices_is_translated_whole) {
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "this device has no virtual memory management";
  const context_guard guard(driver(), d.context());
  const std::size_t bytes = d.capabilities().page_bytes;
  const auto at = driver().reserve_addresses(bytes, 0, device_address());
  const auto page = driver().create_physical(bytes, {on_device(0), handle_type::none, false});
  ASSERT_TRUE(at && page);
  ASSERT_TRUE(driver().map(*at, bytes, *page));
  // More grants than one call takes, the last of which decides.
  std::vector<access_grant> grants(100, {on_device(0), access_mode::read});
  grants.back().mode = access_mode::read_write;
  ASSERT_TRUE(driver().set_access({*at, bytes}, grants.data(), grants.size()));
  EXPECT_EQ(*driver().get_access(*at, on_device(0)), access_mode::read_write);
  grants.back().mode = access_mode::none;
  ASSERT_TRUE(driver().set_access({*at, bytes}, grants.data(), grants.size()));
  EXPECT_EQ(*driver().get_access(*at, on_device(0)), access_mode::none);
  EXPECT_FALSE(driver().set_access({*at, bytes}, nullptr, 1));
  EXPECT_TRUE(driver().unmap({*at, bytes}));
  EXPECT_TRUE(driver().release_physical(*page));
  EXPECT_TRUE(driver().free_addresses({*at, bytes}));
}

}  // namespace
}  // namespace stillmap
