// The program `stillmap`: its last line of output, its exit status, and its errors for bad input.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <tuple>

#include "stillmap/vmm/base/version.h"
#include "tests/tool/command_test.h"

namespace stillmap::testing {
namespace {

namespace fs = std::filesystem;

class CliTest : public command_test {
 protected:
  void SetUp() override {
    command_test::SetUp();
    if (!IsSkipped()) can_grow_ = open_device().capabilities().vmm;
  }
  std::string file(const char *name, std::size_t bytes) const {
    const fs::path path = folder_ / name;
    std::mt19937 random(3);
    std::string text(bytes, '\0');
    for (char &c : text) c = static_cast<char>(random());
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }
  std::string trace(const std::string &lines) const {
    const fs::path path = folder_ / "t.trace";
    std::ofstream(path, std::ios::binary) << "# stillmap-trace v1\n" << lines;
    return path.string();
  }
  std::string demo(const std::string &more) const {
    return "demo growth --svg '" + (folder_ / "deep/er/map.svg").string() + "' " + more;
  }
  bool can_grow_ = true;
};

TEST_F(CliTest, AFileGrowsABufferInPlace) {
  if (!can_grow_) GTEST_SKIP() << "this device grows by copying";
  const ran r = run(demo("--chunk 1M '" + file("data", 5000003) + "'"));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.last_line(),
            "stillmap: ok: 5000003 bytes in 3 growths, 0 bytes copied, address unchanged");
  EXPECT_NE(r.out.find("by copying"), std::string::npos);
  EXPECT_EQ(content(folder_ / "deep/er/map.svg").rfind("<svg ", 0), 0u);
}

// Regression: the command read STILLMAP_DRIVER, and so loaded any library, with the rights of its owner.
TEST_F(CliTest, ASetUserIdProgramDoesNotObeyItsCaller) {
  const fs::path own = folder_ / "own";
  fs::copy_file(program(), own);
  struct statvfs at {};
  if (::chown(own.c_str(), 1, static_cast<gid_t>(-1)) != 0 || ::chmod(own.c_str(), 04755) != 0 ||
      ::statvfs(own.c_str(), &at) != 0 || (at.f_flag & ST_NOSUID) != 0) {
    GTEST_SKIP() << "needs root, and users that a user namespace maps, to make such a program";
  }
  const auto says_of = [&](const fs::path &which) {
    const std::string out = (folder_ / "said").string();
    [[maybe_unused]] const int status = std::system(
        ("STILLMAP_DRIVER=/planted/lib.so '" + which.string() + "' doctor >'" + out + "' 2>&1")
            .c_str());
    return content(out);
  };
  EXPECT_NE(says_of(program()).find("/planted"), std::string::npos);
  const std::string said = says_of(own);
  EXPECT_NE(said, "");
  EXPECT_EQ(said.find("/planted"), std::string::npos) << said;
}

TEST_F(CliTest, SoDoesStandardInputFromAFile) {
  if (!can_grow_) GTEST_SKIP() << "this device grows by copying";
  const std::string name = file("data", 3000001);
  const std::string line =
      "stillmap: ok: 3000001 bytes in 1 growths, 0 bytes copied, address unchanged";
  const ran redirected = run(demo("- <'" + name + "'"));
  EXPECT_EQ(redirected.status, 0) << redirected.err;
  EXPECT_EQ(redirected.last_line(), line);
}

TEST_F(CliTest, APipeIsCheckedByDigest) {
  if (!can_grow_) GTEST_SKIP() << "this device grows by copying";
  const std::string name = file("data", 3000001);
  const fs::path out = folder_ / "out";
  const std::string line = "cat '" + name + "' | '" + program() + "' " + demo("-") + " >'" +
                           out.string() + "' 2>/dev/null";
  EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 0);
  const std::string said = content(out);
  EXPECT_NE(said.find("have the digest of the source"), std::string::npos) << said;
  EXPECT_NE(
      said.find("stillmap: ok: 3000001 bytes in 1 growths, 0 bytes copied, address unchanged\n"),
      std::string::npos)
      << said;
}

TEST_F(CliTest, NothingIsAStreamToo) {
  for (const std::string &empty : {file("empty", 0), std::string("/dev/null")}) {
    const ran r = run(demo("'" + empty + "'"));
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(r.last_line(),
              "stillmap: ok: 0 bytes in 0 growths, 0 bytes copied, address unchanged");
  }
}

TEST_F(CliTest, GrowingByCopyingIsFoundOut) {
  const ran r = run(demo("--copying --chunk 1M '" + file("data", 5000003) + "'"));
  EXPECT_EQ(r.status, 6);
  EXPECT_EQ(r.last_line().rfind("stillmap: FAILED: the address moved from 0x", 0), 0u)
      << r.last_line();
  EXPECT_NE(r.last_line().find(" bytes copied to grow"), std::string::npos) << r.last_line();
}

TEST_F(CliTest, ADeviceWithoutPagesSaysSoAndFails) {
  if (can_grow_) GTEST_SKIP() << "this device grows in place";
  const ran r = run(demo("--chunk 1M '" + file("data", 5000003) + "'"));
  EXPECT_EQ(r.status, 6);
  EXPECT_NE(r.out.find("no virtual memory management"), std::string::npos) << r.out;
  EXPECT_EQ(r.last_line().rfind("stillmap: FAILED: ", 0), 0u) << r.last_line();
}

TEST_F(CliTest, LimitAndRepetition) {
  const std::string name = file("data", 1000);
  const auto bytes = [](const ran &r) {
    const std::size_t at = r.out.find("grew     to ");
    return at == std::string::npos ? "" : r.out.substr(at + 12, r.out.find(" in ", at) - at - 12);
  };
  EXPECT_EQ(bytes(run(demo("--limit 300 '" + name + "'"))), "300 bytes");
  EXPECT_EQ(bytes(run(demo("--at-least 1500 '" + name + "'"))), "1.95 KiB (2,000 bytes)");
  EXPECT_EQ(bytes(run(demo("--limit 5000 /dev/zero"))), "4.88 KiB (5,000 bytes)");
}

TEST_F(CliTest, JsonIsAllThatIsPrinted) {
  const std::string name = file("data", 1000);
  for (const std::string &command :
       {"demo growth --svg '' --json '" + name + "'", std::string("doctor --json"),
        std::string("map --json --ops 'grow a 4M'")}) {
    const ran r = run(command);
    EXPECT_EQ(r.status, 0) << command << r.err;
    EXPECT_EQ(r.err, "") << command;
    EXPECT_EQ(r.out.rfind("{\n", 0), 0u) << command;
    EXPECT_EQ(r.out.substr(r.out.size() - 3), "\n}\n") << command;
    EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '{'),
              std::count(r.out.begin(), r.out.end(), '}'));
  }
}

TEST_F(CliTest, WrongUsageIsOneLineThatNamesIt) {
  expect_usage("",
               "a command is missing; there are run, image, task, quota, top, metrics, slurm, "
               "trace, doctor, demo, map");
  expect_usage("dance",
               "there is no command 'dance'; there are run, image, task, quota, top, metrics, "
               "slurm, trace, doctor, demo");
  expect_usage("demo growth --chunk 5Q", "'5Q' is not a size");
  expect_usage("demo growth --chunk 0", "--chunk");
  expect_usage("demo growth --no-such", "--no-such");
  expect_failure("demo growth /no/such/file", 3, "cannot read /no/such/file");
  expect_usage("demo growth /tmp", "it is a directory");
  expect_usage("demo growth --at-least 5 /dev/zero", "only once");
  expect_usage("map --ops 'grow a'", "line 1, column 1: 'grow a'");
  expect_usage("map --ops 'drop a'", "there is no buffer 'a' yet");
  expect_failure("map --script /no/such/file", 3, "/no/such/file");
  expect_usage("map --script x --ops 'grow a 2M'", "--ops");
  expect_usage("trace replay", "TRACE is missing");
  expect_failure("trace replay /no/such/file", 3, "/no/such/file");
  expect_usage("trace replay '" + trace("i\nf,1") + "'", "'f,1': there is no block 1");
  expect_usage("trace replay --allocator none '" + trace("") + "'", "there is no allocator 'none'");
  expect_usage("trace replay --iterations 0 '" + trace("") + "'", "--iterations");
  expect_usage("trace replay --every-byte '" + trace("") + "'", "--verify");
  expect_usage("trace replay --map a.png '" + trace("") + "'", "'a.png' ends in none of");
  expect_usage("trace replay --beside segments '" + trace("") + "'", "--map");
}

// Regression: it was ignored, and what its user wanted did not happen.
TEST_F(CliTest, AnOptionWithoutTheOneThatItBelongsToIsWrongUsage) {
  for (const auto &[line, option, other] : {
           std::tuple("task suspend @x --all --within 3", "--within", "--each"),
           {"task resume @x --all --within 3", "--within", "--each"},
           {"task migrate send @x --all --to h:1 --within 3", "--within", "--each"},
           {"task suspend @x --all --directory /tmp", "--directory", "--to file"},
           {"task suspend @x --all --to pinned --directory /tmp", "--directory", "--to file"},
           {"task snapshot @x --all -o i --force", "--force", "--replace"},
           {"image flatten a b --force", "--force", "--replace"},
           {"image restore a --timeout 3", "--timeout", "--send-to"},
           {"trace replay t --every-byte", "--every-byte", "--verify"},
           {"trace replay t --beside torch", "--beside", "--map"},
           {"trace soak --speed 2", "--speed", "REQUESTS"},
           {"metrics --interval 3", "--interval", "--textfile"},
           {"run --minimum 1M -- true", "--minimum", "--share"},
           {"run --priority 1 -- true", "--priority", "--share"},
           {"run --audit a -- true", "--audit", "--control"},
       }) {
    expect_usage(line, std::string(option) + " has an effect only with " + other + " (see");
  }
  expect_failure("task suspend @nobody-at-all --all --to file --directory /tmp", 3, "@nobody");
}

TEST_F(CliTest, AMachineWithoutBytesCannotBeChecked) {
  const ran r = run(demo("--driver host"), "HOSTCUDA=unbacked");
  if (!on_hostcuda() && r.status == 3) GTEST_SKIP() << "no hostcuda here";
  EXPECT_EQ(r.status, 2);
  EXPECT_NE(r.err.find("unbacked"), std::string::npos) << r.err;
}

TEST_F(CliTest, RunningOutOfMemorySaysHowToStopEarlier) {
  if (!on_hostcuda() || !can_grow_) GTEST_SKIP() << "needs a small device";
  const ran r = run(demo("--limit 100M /dev/zero"), "HOSTCUDA=memory=64M");
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("--limit SIZE"), std::string::npos) << r.err;
}

TEST_F(CliTest, NoDriverAndNoDeviceAreThree) {
  for (const char *command : {"demo growth", "doctor", "map"}) {
    const ran none =
        run(std::string(command) + " --driver host", "STILLMAP_HOSTCUDA=/no/such/libcuda.so.1");
    EXPECT_EQ(none.status, 3) << command;
    EXPECT_NE(none.err.find("no CUDA driver: tried hostcuda"), std::string::npos) << none.err;
  }
  const ran far = run("demo growth --device 99");
  EXPECT_EQ(far.status, 3);
  EXPECT_NE(far.err.find("there is no device 99"), std::string::npos) << far.err;
}

TEST_F(CliTest, AReplayTellsWhatItTook) {
  const std::string file = trace("a,1,3000000,0\ni\na,2,100,0\nf,2\ni\na,3,100,0\nf,3\ni\n");
  const ran text = run("trace replay --allocator segments --iterations 5 --verify '" + file + "'");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("11 requests in 5 iterations, 1 stream"), std::string::npos) << text.out;
  EXPECT_EQ(text.last_line().rfind("stillmap: ok: every block kept its content", 0), 0u);
  const ran json =
      run("trace replay --json --find-min-capacity --allocator segments '" + file + "'");
  EXPECT_EQ(json.status, 0) << json.err;
  std::size_t at = 0;
  for (const char *key :
       {"peak_live_bytes", "peak_committed_bytes", "min_capacity_bytes", "utilization", "ops",
        "ns_per_op", "ns_per_op_mean", "request_cpu_ns", "host_bytes", "retries", "driver_calls",
        "driver_calls_last_iteration", "modelled_driver_us", "modelled_driver_us_last_iteration",
        "mutex_ns", "oom"}) {
    const std::size_t found = json.out.find("\n  \"" + std::string(key) + "\":", at);
    ASSERT_NE(found, std::string::npos) << key << " in " << json.out;
    at = found;
  }
  EXPECT_EQ(std::count(json.out.begin(), json.out.end(), ':'),
            20 + (json.out.find("cuMemAlloc") != std::string::npos ? 1 : 0))
      << json.out;
  EXPECT_EQ(run("trace replay --capacity 9x --allocator segments '" + file + "'").status, 0);
  EXPECT_EQ(run("trace replay --capacity 0.5x --allocator segments '" + file + "'").status, 1);
  EXPECT_EQ(run("trace replay --capacity -1x --allocator segments '" + file + "'").status, 2);
  const ran little = run("trace replay --capacity 4M --allocator segments '" + file + "'");
  EXPECT_EQ(little.status, 1);
  EXPECT_NE(little.err.find("out of memory at operation 1 of"), std::string::npos) << little.err;
}

TEST_F(CliTest, AReplayTakesAPageSize) {
  const std::string file = trace("a,1,3000000,0\nf,1\n");
  const ran large = run("trace replay --json --page-size 8M '" + file + "'");
  EXPECT_EQ(large.status, 0) << large.err;
  const char *const held = can_grow_ ? "\"peak_committed_bytes\": 8388608" : "\"ops\": 2";
  EXPECT_NE(large.out.find(held), std::string::npos) << large.out;
  expect_usage("trace replay --page-size 3M '" + file + "'", "page_bytes is not a power of two");
  expect_usage("trace replay --page-size 8M --allocator segments '" + file + "'",
               "--page-size is a setting of 'stillmap'");
}

// Blocks that share large segments, of which few are left in each when a large one is wanted.
TEST_F(CliTest, TwoHeapsAreComparedWhereOneRunsOut) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "a," + std::to_string(i) + ",5000000,0\n";
  for (int i = 0; i < 40; ++i) {
    if (i % 4 != 0) text += "f," + std::to_string(i) + "\n";
  }
  const std::string file = trace(text + "a,40,100000000,0\nf,40\n");
  const ran r = run("trace compare --every-byte-shrink 2 --svg '" + file + ".svg' '" + file + "'");
  if (!can_grow_) {
    EXPECT_EQ(r.status, 0) << r.err << r.out;
    EXPECT_NE(r.out.find("pages cannot be moved and there is\nnothing to compare"),
              std::string::npos)
        << r.out;
    EXPECT_NE(r.out.find("served all 72 requests"), std::string::npos) << r.out;
    EXPECT_EQ(r.last_line().rfind("stillmap: ok: every block kept its content", 0), 0u);
    const ran verified = run("trace replay --verify --allocator stillmap '" + file + "'");
    EXPECT_EQ(verified.status, 0) << verified.err;
    EXPECT_EQ(verified.last_line().rfind("stillmap: ok: every block kept its content", 0), 0u);
    return;
  }
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_NE(r.out.find("segments  OUT OF MEMORY at operation 71"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("95.4 MiB requested"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("stillmap  served all 72 requests"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("segments: out of memory"), std::string::npos) << r.out;
  EXPECT_EQ(r.last_line().rfind("stillmap: ok: where 'segments' ran out of memory", 0), 0u);
  std::ifstream svg(file + ".svg");
  EXPECT_NE(std::string(std::istreambuf_iterator<char>(svg), {}).find("</svg>"), std::string::npos);
  // Enough for both, and for neither.
  const ran much = run("trace compare --capacity 1G --svg '' '" + file + "'");
  EXPECT_EQ(much.status, 0);
  EXPECT_NE(much.out.find("verdict   1 GiB is enough for stillmap, segments, "), std::string::npos)
      << much.out;
  EXPECT_NE(much.last_line().find("is enough for 'segments' too"), std::string::npos) << much.out;
  const ran little = run("trace compare --capacity 100M --svg '' '" + file + "'");
  EXPECT_EQ(little.status, 1);
  EXPECT_NE(little.last_line().find("'stillmap' did not finish"), std::string::npos) << little.out;
}

// The command itself uses the allocator that is recorded.
TEST_F(CliTest, AProgramIsRecorded) {
  const std::string lines = "a,0,3000000,0\na,1,100,1\nf,1\na,2,700,0\nf,2\nf,0\n";
  const std::string file = trace(lines), into = (folder_ / "r.trace").string();
  const std::string replay = " -- '" + program() + "' trace replay '" + file + "'";
  const ran r = run("trace record --output '" + into + "'" + replay);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("recorded  6 events: 3 blocks on 2 streams"), std::string::npos) << r.out;
  const std::string text = content(into);
  EXPECT_EQ(text.substr(text.find("a,0")), lines);
  // A program that fails, one that is killed, one that does not use it.
  const ran failed = run("trace record --output '" + into + "'" + replay + " --capacity 2M");
  EXPECT_EQ(failed.status, 1);
  EXPECT_NE(failed.err.find("ended with status 1; its requests up to then"), std::string::npos)
      << failed.err;
  const ran killed = run("trace record --output '" + into + "' -- sh -c 'kill -9 $$'");
  EXPECT_EQ(killed.status, 1);
  EXPECT_NE(killed.err.find("was ended by signal 9"), std::string::npos) << killed.err;
  EXPECT_NE(killed.err.find("nothing was recorded"), std::string::npos) << killed.err;
  expect_failure("trace record -- /no/such/program", 3, "cannot start /no/such/program");
}

TEST_F(CliTest, TheSampleMapHasOneOfEach) {
  if (!can_grow_) GTEST_SKIP() << "this device has no pages to share";
  const ran r = run("map");
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char *part :
       {"weights", "cache", "ring", "state", "branch", "pool", "shared", "mapped"}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
  }
}

TEST_F(CliTest, TheDoctorKnowsThisMachine) {
  const ran r = run("doctor");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(can_grow_ ? "Usable: buffers grow in place" : "Usable with the fallback"),
            std::string::npos)
      << r.out;
  // Each area of checkpointing has its line.
  for (const char *part :
       {"suspend", "snapshots: digests", "snapshots: io_uring", "snapshots: direct I/O", "handoff",
        "migration", "migration: TLS 1.3", "the driver's state", "CRIU"}) {
    EXPECT_NE(r.out.find(part), std::string::npos) << part;
  }
  const ran json = run("doctor --json");
  for (const char *key : {"suspend_room", "device_digests", "io_uring", "direct_io", "handoff",
                          "migration", "migration_tls", "driver_checkpoint", "criu"}) {
    EXPECT_NE(json.out.find('"' + std::string(key) + '"'), std::string::npos) << key;
  }
}

TEST_F(CliTest, AMisspelledWordGetsASuggestion) {
  for (const auto &[words, near] : std::vector<std::pair<std::string, std::string>>{
           {"image verfy x", "did you mean 'image verify'?"},
           {"verify x", "did you mean 'image verify'?"},
           {"imgae", "did you mean 'image'?"},
           {"task handof", "did you mean 'task handoff'?"},
           {"image verify --thread 2 x", "did you mean '--threads'?"},
           {"image flatten a b --compress lz5", "did you mean 'lz4'?"}}) {
    expect_usage(words, near);
  }
  expect_usage("image verify --thread 2 x", "(see stillmap image verify --help)");
}

TEST_F(CliTest, AFailureNamesItsCommand) {
  expect_failure("image verify /no/such.smi", 3, "stillmap: image verify: /no/such.smi: ");
  expect_failure("task status @no-such-task", 3, "stillmap: task status: @no-such-task: ");
  expect_failure("trace import /no/such/file x.trace", 3, "stillmap: trace import: ");
}

TEST_F(CliTest, AFailureIsAJsonDocumentToo) {
  const ran missing = run("image verify --json /no/such.smi");
  EXPECT_EQ(missing.status, 3);
  for (const char *part :
       {"\"error\": {", "\"command\": \"image verify\"", "\"exit_status\": 3", "\"operation\": \"",
        "\"reason\": \"", "\"code\": \"No such file", "\"subject\": \"/no/such.smi\"",
        "\"value\": 0", "\"limit\": 0", "\"unit\": \"\"", "\"message\": \""}) {
    EXPECT_NE(missing.out.find(part), std::string::npos) << part << " in " << missing.out;
  }
  const ran usage = run("task status --json --no-such @x");
  EXPECT_EQ(usage.status, 2);
  EXPECT_NE(usage.out.find("\"code\": \"usage\""), std::string::npos) << usage.out;
  for (const ran &r : {missing, usage}) {
    EXPECT_EQ(r.out.rfind("{\n", 0), 0u) << r.out;
    EXPECT_EQ(r.out.substr(r.out.size() - 2), "}\n") << r.out;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
}

TEST_F(CliTest, TheVersionIsPrinted) {
  const ran r = run("--version");
  EXPECT_EQ(r.status, 0);
  EXPECT_EQ(r.out, std::string("stillmap ") + STILLMAP_VERSION_STRING + "\n");
}

TEST_F(CliTest, HelpExplainsItself) {
  for (const char *command : {"", "demo growth", "doctor", "map", "image", "task handoff"}) {
    const ran r = run(std::string(command) + " --help");
    EXPECT_EQ(r.status, 0);
    EXPECT_NE(r.out.find("Exit status: 0 ok"), std::string::npos) << command;
  }
}

}  // namespace
}  // namespace stillmap::testing
