#include "examples/criu/tool.h"

#include <fcntl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace criu_example {
namespace {

// Bits of /proc/self/status: capabilities(7).
constexpr unsigned sys_admin = 21, checkpoint_restore = 40;

std::uint64_t effective_capabilities() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("CapEff:", 0) == 0) return std::stoull(line.substr(7), nullptr, 16);
  }
  return 0;
}

// The lines with "Error", or else the last line.
std::string errors_in(const std::string &file) {
  std::ifstream in(file);
  std::string all, last;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
    const std::size_t at = line.find("Error (");
    if (at != std::string::npos) all += (all.empty() ? "" : "; ") + line.substr(at);
  }
  return all.empty() ? last : all;
}

}  // namespace

std::optional<tool> tool::find() {
  if (const char *const named = std::getenv("STILLMAP_CRIU"); named != nullptr && *named != 0) {
    return tool(named);
  }
  const char *const path = std::getenv("PATH");
  std::istringstream folders(std::string(path != nullptr ? path : "") +
                             ":/usr/local/sbin:/usr/sbin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string file = folder + "/criu";
    if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return tool(std::move(file));
  }
  return std::nullopt;
}

outcome tool::run(const std::vector<std::string> &arguments, const std::string &log) const {
  std::vector<char *> argv{const_cast<char *>(path_.c_str())};
  for (const std::string &a : arguments) argv.push_back(const_cast<char *>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child < 0) return {false, "no process can be created for criu"};
  if (child == 0) {
    const int null = ::open("/dev/null", O_RDONLY);
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (null < 0 || out < 0 || ::dup2(null, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(out, 2) < 0) {
      ::_exit(126);
    }
    ::execv(path_.c_str(), argv.data());
    ::_exit(127);
  }
  int exit_status = 0;
  if (::waitpid(child, &exit_status, 0) != child) return {false, "criu cannot be waited for"};
  if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0) return {true, ""};
  if (WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 127)
    return {false, "cannot start " + path_};
  return {false, errors_in(log)};
}

outcome tool::check() const {
  const std::uint64_t capabilities = effective_capabilities();
  if ((capabilities >> sys_admin & 1U) == 0 && (capabilities >> checkpoint_restore & 1U) == 0) {
    return {false,
            "this process has neither CAP_CHECKPOINT_RESTORE (Linux 5.9) nor CAP_SYS_ADMIN: run "
            "it as root"};
  }
  std::string log = "/tmp/criu-check-XXXXXX";
  const int fd = ::mkstemp(log.data());
  if (fd < 0) return {false, std::string("no file in /tmp: ") + std::strerror(errno)};
  ::close(fd);
  outcome o = run({"check"}, log);
  ::unlink(log.c_str());
  if (o.good) return o;
  utsname kernel{};
  ::uname(&kernel);
  o.reason = path_ + " check on Linux " + kernel.release + ": " + o.reason;
  if (o.reason.find("vDSO area bounds") != std::string::npos) {
    o.reason +=
        " (this criu does not support this kernel: since Linux 6.13 the vDSO clock data is two "
        "areas, which needs criu 4.1)";
  }
  return o;
}

outcome tool::dump(pid_t task, const std::string &folder) const {
  const std::string log = folder + "/dump.txt";
  return run({"dump", "--tree", std::to_string(task), "--images-dir", folder}, log);
}

outcome tool::restore(const std::string &folder) const {
  const std::string log = folder + "/restore.txt";
  return run({"restore", "--restore-detached", "--images-dir", folder}, log);
}

}  // namespace criu_example
