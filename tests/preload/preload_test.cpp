#include "tests/preload/preload_test.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

extern char **environ;

namespace stillmap::testing {

namespace fs = std::filesystem;

namespace {

std::uint64_t number_behind(const std::string &text, std::size_t at) {
  at = text.find_first_of("0123456789", at);
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at, nullptr, 10);
}

}  // namespace

std::uint64_t client_result::total(const std::string &field) const {
  std::uint64_t sum = 0;
  const std::string name = '"' + field + "\":";
  for (std::size_t at = statistics.find(name); at != std::string::npos;
       at = statistics.find(name, at + 1)) {
    sum += number_behind(statistics, at + name.size());
  }
  return sum;
}

std::uint64_t client_result::passed_on(const std::string &kind) const {
  const std::size_t at = statistics.find('"' + kind + "\":");
  return at == std::string::npos ? UINT64_MAX : number_behind(statistics, at + kind.size());
}

long client_result::blocks() const {
  const std::size_t at = out.find("blocks ");
  return at == std::string::npos ? -1 : std::strtol(out.c_str() + at + 7, nullptr, 10);
}

std::string built_for_preload(const std::string &name) {
  const char *const folder = std::getenv("STILLMAP_PRELOAD_CLIENTS");
  return fs::absolute(fs::path(folder != nullptr ? folder : "tests") / name).string();
}

pid_t spawn(std::vector<std::string> words, std::vector<std::string> environment,
            const posix_spawn_file_actions_t &actions) {
  const auto pointers = [](std::vector<std::string> &texts) {
    std::vector<char *> all;
    for (std::string &t : texts) all.push_back(t.data());
    all.push_back(nullptr);
    return all;
  };
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, words[0].c_str(), &actions, nullptr,
                                   pointers(words).data(), pointers(environment).data());
  return failed == 0 ? pid : -1;
}

int wait_for(pid_t pid) {
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid) return -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

std::string preload_test::clients_folder() {
  return fs::path(built("x")).parent_path().string();
}
std::string preload_test::preload_library() {
  const char *const given = std::getenv("STILLMAP_PRELOAD_LIBRARY");
  return fs::absolute(given != nullptr ? given : "preload/libstillmap_preload.so").string();
}
std::string preload_test::driver_library() {
  const char *const given = std::getenv("STILLMAP_HOSTCUDA");
  return fs::absolute(given != nullptr ? given : "hostcuda/libcuda.so.1").string();
}
std::string preload_test::profile() {
  const char *const given = std::getenv("HOSTCUDA");
  return given != nullptr ? given : "";
}

void preload_test::SetUp() {
  folder_ = fs::path(::testing::TempDir()) / ("stillmap_preload_" + std::to_string(::getpid()));
  fs::create_directories(folder_);
}
void preload_test::TearDown() {
  fs::remove_all(folder_);
}

std::string preload_test::content(const std::string &file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> preload_test::environment(const client_setting &setting) const {
  std::string preloads;
  for (const std::string &library : {setting.before.empty() ? "" : built(setting.before),
                                     setting.preloaded ? preload_library() : "",
                                     setting.behind.empty() ? "" : built(setting.behind)}) {
    if (!library.empty()) preloads += (preloads.empty() ? "" : ":") + library;
  }
  std::vector<std::string> variables{
      "LD_LIBRARY_PATH=" + fs::path(driver_library()).parent_path().string() + ":" +
          fs::absolute("hostcuda/nvml").string(),
      "HOSTCUDA=" + profile(), "STILLMAP_PRELOAD_STATS=" + file("statistics")};
  if (!preloads.empty()) variables.push_back("LD_PRELOAD=" + preloads);
  for (const std::string &v : setting.variables) {
    std::erase_if(variables, [&](const std::string &e) {
      return e.starts_with(v.substr(0, v.find('=') + 1));
    });
    variables.push_back(v);
  }
  return variables;
}

client_result preload_test::run(const std::string &client,
                                const std::vector<std::string> &arguments,
                                const client_setting &setting) const {
  const std::string statistics = file("statistics"), out = file("out"), err = file("err");
  fs::remove(statistics);
  std::vector<std::string> words{built(client)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const pid_t pid = spawn(words, environment(setting), actions);
  posix_spawn_file_actions_destroy(&actions);
  client_result result;
  EXPECT_NE(pid, -1) << words[0];
  if (pid == -1) return result;
  result.status = wait_for(pid);
  result.out = content(out);
  result.err = content(err);
  result.statistics = content(statistics);
  return result;
}

void preload_test::expect_served(const client_result &r) {
  ASSERT_EQ(r.status, 0) << r.out << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_GT(r.blocks(), 0) << r.out;
  EXPECT_EQ(r.total("allocations"), static_cast<std::uint64_t>(r.blocks())) << r.statistics;
  EXPECT_EQ(r.total("frees"), static_cast<std::uint64_t>(r.blocks())) << r.statistics;
  EXPECT_EQ(r.total("live_bytes"), 0u) << r.statistics;
  EXPECT_EQ(r.passed_on("not_served"), 0u) << r.statistics;
}

}  // namespace stillmap::testing
