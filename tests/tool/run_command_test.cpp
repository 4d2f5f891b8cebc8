// `stillmap run`: the status is the program's, and what cannot be run is refused before it starts.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "stillmap/allocators/shared_quota.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

namespace fs = std::filesystem;

class run_command : public command_test {};

TEST_F(run_command, ends_as_the_program_does) {
  EXPECT_EQ(run("run -- true").status, 0);
  EXPECT_EQ(run("run -- sh -c 'exit 7'").status, 7);
  const ran killed = run("run -- sh -c 'kill -9 $$'");
  EXPECT_EQ(killed.status, 128 + 9);
  EXPECT_EQ(killed.err, "stillmap: sh was ended by signal 9 and could not say what it allocated\n");
}

TEST_F(run_command, passes_on_what_asks_it_to_end) {
  for (const auto &[signal, number] : {std::pair("TERM", 15), {"HUP", 1}}) {
    const ran ended = run(std::string("run -- sh -c 'kill -") + signal + " $PPID; exec sleep 20'");
    EXPECT_EQ(ended.status, 128 + number);
    EXPECT_NE(ended.err.find("was ended by signal " + std::to_string(number)), std::string::npos)
        << ended.err;
  }
  EXPECT_EQ(run("run -q -- sh -c 'trap \"exit 4\" TERM; kill -TERM $PPID; sleep 1'").status, 4)
      << "the program decides";
}

TEST_F(run_command, a_program_without_cuda_sees_nothing) {
  const ran plain = run("run -q -- sh -c 'echo out; echo err >&2; ls'");
  EXPECT_EQ(plain.out.substr(0, 4), "out\n");
  EXPECT_EQ(plain.err, "err\n");
  const ran said = run("run -- echo out");
  EXPECT_EQ(said.out, "out\n");
  EXPECT_EQ(said.err, "stillmap: echo ended with status 0 and allocated no device memory\n");
}

TEST_F(run_command, arguments_after_the_program_are_its_own) {
  EXPECT_EQ(run("run -q echo --limit 3 --help").out, "--limit 3 --help\n");
}

TEST_F(run_command, says_whether_other_processes_can_map_the_memory) {
  const std::string print = " -q -- sh -c 'echo \"ipc $STILLMAP_PRELOAD_IPC\"'";
  EXPECT_EQ(run("run" + print).out, "ipc \n");
  EXPECT_EQ(run("run --ipc on" + print).out, "ipc 1\n");
  EXPECT_EQ(run("run --ipc off" + print).out, "ipc 0\n");
  expect_usage("run --ipc maybe -- true", "--ipc");
}

TEST_F(run_command, the_addresses_of_its_memory_are_the_programs_to_hear) {
  const std::string says = " -- sh -c 'echo $STILLMAP_PRELOAD_ADDRESS'";
  EXPECT_EQ(run("run -q --address 0x180000000000" + says).out, "0x180000000000\n");
  EXPECT_EQ(run("run -q --control" + says).out, "\n");
  expect_usage("run --address here -- true", "'here' is no address");
}

TEST_F(run_command, requests_to_the_program_are_recorded_where_it_says) {
  const std::string print = " -q --control -- sh -c 'cd / && echo $STILLMAP_AUDIT'";
  EXPECT_EQ(run("run" + print).out, "\n");
  const std::string log = (folder_ / "audit").string();
  EXPECT_EQ(run("run --audit '" + log + "'" + print).out, log + "\n");
  EXPECT_TRUE(std::filesystem::exists(log));
  expect_usage("run --audit '" + log + "' -- true", "--audit has an effect only with --control");
  expect_failure("run --control --audit '" + log + "/none' -- true", 3,
                 "the audit log cannot be opened");
  expect_failure("run --control --audit journald:no-such -- true", 3,
                 "the journal cannot be reached");
}

TEST_F(run_command, what_does_not_exist_is_not_found) {
  expect_failure("run -- /no/such/program", 3, "cannot start /no/such/program");
  expect_failure("run -- no-such-program", 3,
                 "cannot start no-such-program: no such program in PATH");
  expect_usage("run", "PROGRAM");
  expect_usage("run --limit many -- true", "--limit");
}

TEST_F(run_command, a_static_program_is_refused) {
  // The head of an ELF file without an interpreter.
  const std::string path = (folder_ / "static").string();
  std::string head(64, '\0');
  head.replace(0, 5, "\177ELF\2", 5);
  std::ofstream(path) << head;
  ASSERT_EQ(::chmod(path.c_str(), 0755), 0);
  expect_failure("run -- '" + path + "'", 5, "it is linked statically");
  head[4] = 1;
  std::ofstream(path) << head;
  expect_failure("run -- '" + path + "'", 5, "it is a 32-bit program");
}

TEST_F(run_command, a_setuid_program_of_another_user_is_refused) {
  const std::string path = (folder_ / "setuid").string();
  fs::copy_file("/bin/true", path);
  if (::chown(path.c_str(), 1, static_cast<gid_t>(-1)) != 0 || ::chmod(path.c_str(), 04755) != 0) {
    GTEST_SKIP() << "needs root, and users that a user namespace maps, to make such a program";
  }
  expect_failure("run -- '" + path + "'", 5, "it is setuid");
}

TEST_F(run_command, memory_that_a_program_allocates_is_served) {
  const std::string stats = (folder_ / "stats.json").string();
  // The command itself is a CUDA program like any other.
  const ran done =
      run("run --explain --limit 1G --stats '" + stats + "' -- '" + program() + "' doctor");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("allocations served"), std::string::npos) << done.err;
  EXPECT_NE(content(stats).find("\"passed_on\": "), std::string::npos);
  if (done.err.find(" 0 allocations served") != std::string::npos) {
    GTEST_SKIP() << "with this driver the doctor maps all of its memory itself";
  }
  EXPECT_NE(done.err.find("stillmap: it allocates device memory"), std::string::npos) << done.err;
  EXPECT_NE(content(stats).find("\"live_peak_bytes\": "), std::string::npos);
}

TEST_F(run_command, what_the_driver_serves_is_counted_as_well) {
  const ran done = run("run --explain --limit 1G --allocator driver -- '" + program() + "' doctor");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find(" 0 allocations served"), std::string::npos) << done.err;
  EXPECT_NE(done.err.find(" by the driver, at most "), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("stillmap: it allocates"), std::string::npos) << done.err;
  expect_usage("run --allocator mine -- true", "--allocator");
}

TEST_F(run_command, a_program_takes_part_in_a_quota) {
  const std::string quota = (folder_ / "quota").string();
  const ran done = run("run --limit 512M --share '" + quota +
                       ":1G' --minimum 16M --priority -2 -- '" + program() + "' doctor");
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_NE(done.err.find("allocations served"), std::string::npos) << done.err;
  EXPECT_EQ(done.err.find("not shared"), std::string::npos) << done.err;
  const ran status = run("quota status '" + quota + "'");
  EXPECT_NE(status.out.find("0 B of 1 GiB reserved by 0 participants"), std::string::npos)
      << status.out;
  const ran events = run("quota watch --for 0.1 --json '" + quota + "'");
  EXPECT_NE(events.out.find("joined"), std::string::npos) << events.out;
}

TEST_F(run_command, a_quota_that_cannot_be_joined_is_refused_before_the_program_starts) {
  expect_usage("run --minimum 1G -- echo started", "--minimum has an effect only with --share");
  expect_usage("run --priority 0 -- echo started", "--priority has an effect only with --share");
  expect_usage("run --share ':1G' -- echo started", "--share");
  expect_usage("run --share 'gpu0:much' -- echo started", "--share");
  const std::string quota = (folder_ / "quota").string();
  expect_failure("run --share '" + quota + "/gpu0' -- echo started", 3, "/gpu0");
  expect_usage("run --share '" + quota + ":1G' --minimum 2G -- echo started", "minimum");
  expect_usage("run --share '" + quota + ":1G' --limit 1M --minimum 2M -- echo started", "minimum");
  // What the command line cannot know of: what the others in the quota have.
  const auto other =
      shared_quota::open(quota, {.limit = 1ull << 30, .terms = {.minimum = 600ull << 20}});
  ASSERT_TRUE(other) << other.error().message();
  expect_failure("run --share '" + quota + "' --minimum 500M -- echo started", 1,
                 "not enough memory for a minimum of 500 MiB: of the limit of 1 GiB the minima of "
                 "others leave 424 MiB; lower the minimum");
  EXPECT_EQ(run("run --share '" + quota + "' --minimum 400M -- echo started").out, "started\n");
  std::ofstream(quota) << "something else";
  EXPECT_NE(run("run --share '" + quota + "' -- echo started").status, 0);
  EXPECT_EQ(run("run --share '" + quota + "' -- echo started").out, "");
  // One that others may write, where everybody makes files.
  const std::string name = fs::path(folder_).filename().string() + ".share";
  const std::string path = "/dev/shm/" + name;
  std::ofstream(path) << "";
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  const ran refused = run("run --share '" + name + "' -- echo started");
  EXPECT_EQ(refused.status, 5) << refused.err;
  EXPECT_EQ(refused.out, "");
  fs::remove(path);
}

}  // namespace
}  // namespace stillmap::testing
