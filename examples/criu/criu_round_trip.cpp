// Dumps a process with device memory by CRIU, which kills it, and restores it: same process id, same
// addresses, same bytes; then it continues to work. docs/criu.md
//
//   criu_round_trip          does all that; exit status 77: CRIU does not work on this machine
//   criu_round_trip task     the process that is dumped
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "examples/criu/task.h"
#include "examples/criu/tool.h"

using namespace criu_example;

namespace {

constexpr int skipped = 77;

struct failure {
  std::string why;
};

class folder {
 public:
  folder() {
    const char *const usual = std::getenv("TEST_TMPDIR");
    path_ = std::string(usual != nullptr ? usual : "/tmp") + "/stillmap-criu-XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) throw failure{"no folder " + path_};
  }
  folder(const folder &) = delete;
  folder &operator=(const folder &) = delete;
  ~folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

std::string text_of(const std::string &file) {
  std::ifstream in(file);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A process that shares nothing with this one but its log file: CRIU cannot restore what a process
// shares with others.
class started_task {
 public:
  started_task(const char *what, const std::string &log) : log_(log) {
    pid_ = ::fork();
    if (pid_ < 0) throw failure{"no process"};
    if (pid_ != 0) return;
    ::setsid();
    const int null = ::open("/dev/null", O_RDONLY);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (null < 0 || out < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0) {
      ::_exit(126);
    }
    ::close_range(3, ~0U, 0);
    ::execl("/proc/self/exe", "criu_round_trip", what, nullptr);
    ::_exit(127);
  }
  started_task(const started_task &) = delete;
  started_task &operator=(const started_task &) = delete;
  ~started_task() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  pid_t pid() const { return pid_; }
  // Waits until the task prints the word. Throws its output if it ends before.
  void wait_for(const char *word) {
    const std::string line = std::string(word) + "\n";
    for (int i = 0; i < 6000; ++i) {
      if (text_of(log_).find(line) != std::string::npos) return;
      if (ended()) throw failure{"the task ended: " + text_of(log_)};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw failure{"the task does not print " + std::string(word) + ": " + text_of(log_)};
  }
  void signal(int number) const { ::kill(pid_, number); }
  // Waits for its end after a dump, which kills it.
  void wait_until_killed() {
    int exit_status = 0;
    if (::waitpid(pid_, &exit_status, 0) != pid_) throw failure{"the dumped task did not end"};
  }
  void wait_until_finished() {
    int exit_status = 0;
    const pid_t pid = std::exchange(pid_, -1);
    if (::waitpid(pid, &exit_status, 0) != pid || exit_status != 0) {
      throw failure{"the restored task failed: " + text_of(log_)};
    }
  }

 private:
  bool ended() {
    int exit_status = 0;
    if (::waitpid(pid_, &exit_status, WNOHANG) != pid_) return false;
    pid_ = -1;
    return true;
  }
  pid_t pid_ = -1;
  std::string log_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::uintmax_t bytes_in(const std::string &path) {
  std::uintmax_t sum = 0;
  for (const auto &f : std::filesystem::directory_iterator(path)) {
    struct stat s {};
    if (::stat(f.path().c_str(), &s) == 0) sum += static_cast<std::uintmax_t>(s.st_blocks) * 512;
  }
  return sum;
}

// Good: the task was restored and continued. Otherwise criu's reason. Throws if a check of the task
// itself fails.
outcome round_trip(const tool &criu, const char *what, bool print_times) {
  const folder f;
  const std::string images = f.path() + "/images";
  std::filesystem::create_directory(images);
  started_task t(what, f.path() + "/log");
  const pid_t pid = t.pid();
  t.wait_for("ready");
  t.signal(SIGUSR1);
  t.wait_for("prepared");
  auto start = std::chrono::steady_clock::now();
  if (outcome o = criu.dump(pid, images); !o.good) return {false, "dump: " + o.reason};
  const double dumping = seconds_since(start);
  t.wait_until_killed();
  start = std::chrono::steady_clock::now();
  if (outcome o = criu.restore(images); !o.good) return {false, "restore: " + o.reason};
  const double restoring = seconds_since(start);
  t.signal(SIGUSR2);
  t.wait_for("resumed");
  t.wait_until_finished();
  if (print_times) {
    std::printf("process %d dumped in %.2f s to %.1f MiB, killed, restored in %.2f s: %s",
                static_cast<int>(pid), dumping, static_cast<double>(bytes_in(images)) / (1 << 20),
                restoring, ("\n" + text_of(f.path() + "/log")).c_str());
  }
  return {true, ""};
}

int skip(const std::string &why) {
  std::printf("skipped: %s\n", why.c_str());
  return skipped;
}

int round_trips() {
  const auto criu = tool::find();
  if (!criu) return skip("criu is not installed (Debian: apt-get install criu)");
  if (const outcome o = criu->check(); !o.good) return skip(o.reason);
  // Restored processes become children of this one.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw failure{"cannot adopt processes"};
  if (const outcome o = round_trip(*criu, "nothing", false); !o.good) {
    return skip("a process without device memory cannot be dumped and restored here either: " +
                criu->path() + " " + o.reason);
  }
  const outcome o = round_trip(*criu, "task", true);
  if (!o.good) throw failure{criu->path() + " " + o.reason};
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    if (argc == 2 && std::strcmp(argv[1], "task") == 0) return run_task();
    if (argc == 2 && std::strcmp(argv[1], "nothing") == 0) return run_without_device();
    if (argc == 1) return round_trips();
  } catch (const failure &f) {
    std::fprintf(stderr, "failed: %s\n", f.why.c_str());
    return 1;
  }
  std::fprintf(stderr, "usage: %s [task]\n", argv[0]);
  return 2;
}
