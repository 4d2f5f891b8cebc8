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

extern char **environ;

namespace stillmap::tool {
namespace {

failure system_failure(const std::string &what) {
  return {exit_failed, what + ": " + std::generic_category().message(errno)};
}

constexpr const char *ends[] = {"second", "third"};

}  // namespace

outcome<journey_folder> journey_folder::create() {
  std::error_code unknown;
  std::string name = std::filesystem::temp_directory_path(unknown).string() + "/stillmap-XXXXXX";
  if (unknown || ::mkdtemp(name.data()) == nullptr) {
    return tl::unexpected(system_failure("a folder for the journey could not be made"));
  }
  journey_folder out(name, true);
  for (const char *const end : ends) {
    const auto made = migration::make_self_signed(end);
    if (!made) return fail(made.error());
    std::ofstream(out.at(std::string(end) + ".crt")) << made->certificate;
    std::ofstream(out.at(std::string(end) + ".key")) << made->key;
    ::mkdir(out.at(std::string(end) + ".records").c_str(), 0700);
  }
  return out;
}

journey_folder::~journey_folder() {
  std::error_code left;
  if (ours_) std::filesystem::remove_all(path_, left);
}

outcome<migration::credentials> journey_folder::credentials(const std::string &mine,
                                                            const std::string &theirs) const {
  auto out = migration::load_credentials(at(mine + ".crt"), at(mine + ".key"));
  if (!out) return fail(out.error());
  const auto other = migration::load_credentials(at(theirs + ".crt"), "");
  if (!other) return fail(other.error());
  const auto known = migration::fingerprint_of(*other);
  if (!known) return fail(known.error());
  out->fingerprints = {*known};
  return std::move(*out);
}

void say(const said &what) {
  std::string line;
  for (const auto &[word, number] : what) line += fmt::format("{} {} ", word, number);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

outcome<station> station::start(const std::string &part, const journey_folder &in,
                                const driver_options &where) {
  int line[2];
  if (::pipe2(line, O_CLOEXEC) != 0) return tl::unexpected(system_failure("no pipe to be had"));
  std::vector<std::string> words{"stillmap", "journey", "--part",   part,
                                 "--folder", in.path(), "--device", std::to_string(where.device)};
  if (!where.driver.empty()) words.insert(words.end(), {"--driver", where.driver});
  std::vector<char *> arguments;
  for (std::string &w : words) arguments.push_back(w.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, line[1], STDOUT_FILENO);
  pid_t pid = -1;
  errno = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(line[1]);
  if (errno != 0) {
    ::close(line[0]);
    return tl::unexpected(system_failure("another process could not be started"));
  }
  return station(part, pid, line[0]);
}

station::station(station &&o) noexcept
    : part_(std::move(o.part_)),
      pid_(std::exchange(o.pid_, -1)),
      from_(std::exchange(o.from_, -1)),
      heard_(std::move(o.heard_)) {}

station::~station() {
  if (from_ >= 0) ::close(from_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

outcome<said> station::listen() {
  std::size_t end;
  while ((end = heard_.find('\n')) == std::string::npos) {
    pollfd p{from_, POLLIN, 0};
    char buffer[1024];
    const int ready = ::poll(&p, 1, 60'000);
    const ssize_t n = ready > 0 ? ::read(from_, buffer, sizeof buffer) : 0;
    if (n <= 0) {
      return fail(exit_failed, fmt::format("the process that was to be the {} {}", part_,
                                           ready > 0 ? "has ended" : "says nothing"));
    }
    heard_.append(buffer, static_cast<std::size_t>(n));
  }
  std::istringstream line(heard_.substr(0, end));
  heard_.erase(0, end + 1);
  said out;
  std::string word;
  double number = 0;
  while (line >> word >> number) out[word] = number;
  return out;
}

}  // namespace stillmap::tool
