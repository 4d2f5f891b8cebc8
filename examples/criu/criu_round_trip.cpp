// A process with device memory is saved by CRIU, killed, and comes back: same process id, same
// addresses, same bytes; then it goes on. docs/criu.md
//
//   criu_round_trip          does all that; 0: done, 77: this machine does not allow it, and why
//   criu_round_trip task     the process that is saved
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

// A process that has nothing of ours but a file to write to: what it shares with others, CRIU could
// not give back to it.
class started_task {
 public:
  started_task(const char *what, const std::string &log) : log_(log) {
    pid_ = ::fork();
    if (pid_ < 0) throw failure{"no process"};
    if (pid_ != 0) return;
    ::setsid();
    const int nothing = ::open("/dev/null", O_RDONLY);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (nothing < 0 || out < 0 || ::dup2(nothing, 0) < 0 || ::dup2(out, 1) < 0 ||
        ::dup2(out, 2) < 0) {
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
  // Until it has said so. It ends early: why.
  void wait_for(const char *word) {
    const std::string line = std::string(word) + "\n";
    for (int i = 0; i < 6000; ++i) {
      if (text_of(log_).find(line) != std::string::npos) return;
      if (over()) throw failure{"the task ended: " + text_of(log_)};
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    throw failure{"the task does not say " + std::string(word) + ": " + text_of(log_)};
  }
  void tell(int signal) const { ::kill(pid_, signal); }
  // After a dump, which has killed it.
  void is_gone() {
    int how = 0;
    if (::waitpid(pid_, &how, 0) != pid_) throw failure{"the dumped task is not gone"};
  }
  void ends_well() {
    int how = 0;
    const pid_t which = std::exchange(pid_, -1);
    if (::waitpid(which, &how, 0) != which || how != 0) {
      throw failure{"the restored task failed: " + text_of(log_)};
    }
  }

 private:
  bool over() {
    int how = 0;
    if (::waitpid(pid_, &how, WNOHANG) != pid_) return false;
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

// Good: it came back and went on. Otherwise criu's reason; what the task itself finds wrong throws.
outcome round_trip(const tool &criu, const char *what, bool tell_figures) {
  const folder f;
  const std::string images = f.path() + "/images";
  std::filesystem::create_directory(images);
  started_task t(what, f.path() + "/log");
  const pid_t pid = t.pid();
  t.wait_for("holding");
  t.tell(SIGUSR1);
  t.wait_for("fit");
  auto start = std::chrono::steady_clock::now();
  if (outcome o = criu.dump(pid, images); !o.good) return {false, "dump: " + o.said};
  const double dumping = seconds_since(start);
  t.is_gone();
  start = std::chrono::steady_clock::now();
  if (outcome o = criu.restore(images); !o.good) return {false, "restore: " + o.said};
  const double restoring = seconds_since(start);
  t.tell(SIGUSR2);
  t.wait_for("whole");
  t.ends_well();
  if (tell_figures) {
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
  if (const outcome o = criu->check(); !o.good) return skip(o.said);
  // Restored processes are ours to wait for.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw failure{"cannot adopt processes"};
  if (const outcome o = round_trip(*criu, "nothing", false); !o.good) {
    return skip("a process with no device memory at all does not survive here either: " +
                criu->path() + " " + o.said);
  }
  const outcome o = round_trip(*criu, "task", true);
  if (!o.good) throw failure{criu->path() + " " + o.said};
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    if (argc == 2 && std::strcmp(argv[1], "task") == 0) return hold_and_wait();
    if (argc == 2 && std::strcmp(argv[1], "nothing") == 0) return only_wait();
    if (argc == 1) return round_trips();
  } catch (const failure &f) {
    std::fprintf(stderr, "failed: %s\n", f.why.c_str());
    return 1;
  }
  std::fprintf(stderr, "usage: %s [task]\n", argv[0]);
  return 2;
}
