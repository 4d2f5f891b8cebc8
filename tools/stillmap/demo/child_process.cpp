#include "tools/stillmap/demo/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "stillmap/vmm/base/try.h"

namespace stillmap::tool {
namespace {

tl::unexpected<failure> system_failure(const std::string &what) {
  return fail(exit_failed, what + ": " + std::generic_category().message(errno));
}

constexpr const char *ends[] = {"second", "third"};

}  // namespace

outcome<demo_folder> demo_folder::create() {
  std::error_code unknown;
  std::string name = std::filesystem::temp_directory_path(unknown).string() + "/stillmap-XXXXXX";
  if (unknown || ::mkdtemp(name.data()) == nullptr) {
    return system_failure("a temporary folder cannot be created");
  }
  demo_folder out(name, true);
  for (const char *const end : ends) {
    STILLMAP_ASSIGN_OR_RETURN(const auto made, migration::make_self_signed(end));
    std::ofstream(out.at(std::string(end) + ".crt")) << made.certificate;
    std::ofstream(out.at(std::string(end) + ".key")) << made.key;
    ::chmod(out.at(std::string(end) + ".key").c_str(), 0600);  // none but us may read a key
    ::mkdir(out.at(std::string(end) + ".records").c_str(), 0700);
  }
  return out;
}

demo_folder::~demo_folder() {
  std::error_code left;
  if (ours_) std::filesystem::remove_all(path_, left);
}

outcome<migration::credentials> demo_folder::credentials(const std::string &mine,
                                                         const std::string &theirs) const {
  STILLMAP_ASSIGN_OR_RETURN(auto out,
                            migration::load_credentials(at(mine + ".crt"), at(mine + ".key")));
  STILLMAP_ASSIGN_OR_RETURN(const auto other, migration::load_credentials(at(theirs + ".crt"), ""));
  STILLMAP_ASSIGN_OR_RETURN(const auto known, migration::fingerprint_of(other));
  out.fingerprints = {known};
  return out;
}

void print_line(const report_line &line) {
  std::string text;
  for (const auto &[word, number] : line) text += fmt::format("{} {} ", word, number);
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

report_line line_of(const task_check &check) {
  return {{"bytes", static_cast<double>(check.bytes)},
          {"cells", static_cast<double>(check.cells)},
          {"blocks", static_cast<double>(check.blocks)},
          {"writes", static_cast<double>(check.writes)}};
}

outcome<child_process> child_process::start(const std::string &part, const demo_folder &in,
                                            const driver_options &driver) {
  int line[2];
  if (::pipe2(line, O_CLOEXEC) != 0) return system_failure("a pipe cannot be created");
  owned_fd from(line[0]);
  const owned_fd to(line[1]);
  std::vector<std::string> words{"stillmap", "demo",     "lifecycle",
                                 "--part",   part,       "--folder",
                                 in.path(),  "--device", std::to_string(driver.device)};
  if (!driver.driver.empty()) words.insert(words.end(), {"--driver", driver.driver});
  std::vector<char *> arguments;
  for (std::string &w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to.get(), STDOUT_FILENO);
  pid_t pid = -1;
  errno = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (errno != 0) return system_failure("a child process cannot be started");
  return child_process(part, pid, std::move(from));
}

child_process::~child_process() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

outcome<report_line> child_process::read_line() {
  std::size_t end;
  while ((end = buffered_.find('\n')) == std::string::npos) {
    pollfd p{from_.get(), POLLIN, 0};
    char buffer[1024];
    const int ready = ::poll(&p, 1, 60'000);
    const ssize_t n = ready > 0 ? ::read(from_.get(), buffer, sizeof buffer) : 0;
    if (n <= 0) {
      return fail(ready > 0 ? exit_failed : exit_busy,
                  fmt::format("the child process '{}' {}", part_,
                              ready > 0 ? "has ended" : "does not answer"));
    }
    buffered_.append(buffer, static_cast<std::size_t>(n));
  }
  std::istringstream line(buffered_.substr(0, end));
  buffered_.erase(0, end + 1);
  report_line out;
  std::string word;
  double number = 0;
  while (line >> word >> number) out[word] = number;
  return out;
}

}  // namespace stillmap::tool
