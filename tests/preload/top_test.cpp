// `stillmap top` beside programs that nobody changed: who has what, on the machine's own figures.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "tests/preload/operated_program.h"
#include "tests/support/unique_name.h"

namespace stillmap {
namespace {

using namespace std::chrono_literals;
using testing::client_result;
using testing::client_setting;
using testing::operated_program;
using testing::whole_program;

// What stands behind "key": in a JSON text, from `at` on.
std::string value_of(const std::string &json, const std::string &key, std::size_t at = 0) {
  at = json.find('"' + key + "\": ", at);
  if (at == std::string::npos) return {};
  at += key.size() + 4;
  return json.substr(at, json.find_first_of(",\n", at) - at);
}
std::uint64_t number_of(const std::string &json, const std::string &key, std::size_t at = 0) {
  const std::string text = value_of(json, key, at);
  EXPECT_NE(text, "") << key << " in " << json;
  return text.empty() ? 0 : std::stoull(text);
}
// Where the object of a task begins.
std::size_t task_at(const std::string &json, const operated_program &p) {
  const std::size_t at = json.find("\"socket\": \"" + p.address() + '"');
  EXPECT_NE(at, std::string::npos) << p.address() << " in " << json;
  return at;
}

class top : public testing::operated_test {
 protected:
  void SetUp() override {
    operated_test::SetUp();
    if (has_several_devices()) GTEST_SKIP() << "as with one";
  }
  std::unique_ptr<operated_program> start_here() const { return start(1, {machine_}); }
  client_result see(const std::vector<std::string> &options) const {
    std::vector<std::string> words{"top"};
    words.insert(words.end(), options.begin(), options.end());
    client_setting setting;
    setting.preloaded = false;
    setting.variables = {machine_};
    return run("../tools/stillmap", words, setting);
  }
  std::string json() const {
    const client_result r = see({"--json"});
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  }
  const std::string machine_ = "HOSTCUDA=" + profile() + ",machine=" + testing::unique_name("top");
};

TEST_F(top, adds_up_to_what_the_driver_says) {
  const auto first = start_here(), second = start_here();
  client_setting alone;
  alone.variables = {machine_};
  const operated_program stranger(environment(alone), 1);
  ASSERT_EQ(first->ask("allocate 20"), "ok");
  ASSERT_TRUE(second->as_operator().suspend(whole_program));
  const std::string all = json();
  const std::uint64_t used = number_of(all, "used_bytes");
  const std::size_t a = task_at(all, *first), b = task_at(all, *second);
  // Tests beside this one may have tasks, too.
  std::uint64_t sum = number_of(all, "others_bytes");
  for (std::size_t at = 0; (at = all.find("\"held_bytes\"", at)) != std::string::npos; ++at)
    sum += number_of(all, "held_bytes", at);
  EXPECT_EQ(used, sum);
  EXPECT_EQ(number_of(all, "other_processes"), 1u);
  EXPECT_EQ(number_of(all, "pid", a), static_cast<std::uint64_t>(first->pid()));
  EXPECT_EQ(value_of(all, "program", a), "\"preload_operate\"");
  EXPECT_EQ(value_of(all, "state", a), "\"runs\"");
  EXPECT_GE(number_of(all, "live_bytes", a), 23 * first->constant_bytes());
  EXPECT_EQ(number_of(all, "mapped_bytes", a),
            number_of(all, "live_bytes", a) + number_of(all, "cached_bytes", a));
  EXPECT_GE(number_of(all, "held_bytes", a), number_of(all, "mapped_bytes", a));
  EXPECT_EQ(value_of(all, "state", b), "\"suspended\"");
  EXPECT_GE(number_of(all, "suspended_bytes", b), 3 * second->constant_bytes());
  EXPECT_EQ(number_of(all, "mapped_bytes", b), 0u);
  ASSERT_TRUE(second->as_operator().resume("program"));
}

TEST_F(top, prints_a_table) {
  const auto small = start_here(), large = start_here();
  ASSERT_EQ(large->ask("allocate 20"), "ok");
  const client_result r = see({"--once"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("device 0"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find(" tasks\n"), std::string::npos) << r.out;
  const std::size_t first = r.out.find(std::to_string(large->pid()));
  const std::size_t second = r.out.find(std::to_string(small->pid()));
  EXPECT_LT(first, second) << r.out;
  EXPECT_NE(second, std::string::npos) << r.out;
  EXPECT_EQ(see({"--sort", "size", "--once"}).status, 2);
  EXPECT_EQ(see({}).status, 2) << "no terminal";
}

TEST_F(top, does_not_wait_for_a_task_that_hangs) {
  const auto hangs = start_here(), works = start_here();
  ::kill(hangs->pid(), SIGSTOP);
  const std::string all = json();
  ::kill(hangs->pid(), SIGCONT);
  EXPECT_EQ(value_of(all, "state", task_at(all, *hangs)), "\"no answer\"");
  EXPECT_GT(number_of(all, "held_bytes", task_at(all, *hangs)), 0u) << "the driver knows";
  EXPECT_EQ(value_of(all, "state", task_at(all, *works)), "\"runs\"");
}

TEST_F(top, says_who_waits_for_whom) {
  const std::string name = "/dev/shm/" + testing::unique_name("top");
  const std::string quota = name.substr(9);
  const std::string share = "STILLMAP_PRELOAD_SHARE=" + quota + ":100MiB";
  const auto holds = start(1, {machine_, share}), waits = start(1, {machine_, share});
  ASSERT_EQ(holds->ask("allocate 20"), "ok");
  waits->tell("allocate 20");  // waits for what the other one does not give
  std::string all, state;
  for (int i = 0; i < 200 && state.find("waits") == std::string::npos; ++i) {
    std::this_thread::sleep_for(20ms);
    all = json();
    state = value_of(all, "state", task_at(all, *waits));
  }
  EXPECT_NE(state.find("waits for "), std::string::npos) << state;
  EXPECT_NE(state.find(std::to_string(holds->pid())), std::string::npos) << state;
  ::unlink(name.c_str());
}

// The program in a terminal of its own.
class terminal_program {
 public:
  terminal_program(std::vector<std::string> words, std::vector<std::string> environment) {
    winsize size{40, 160, 0, 0};
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ != 0) return;
    const auto pointers = [](std::vector<std::string> &texts) {
      std::vector<char *> all;
      for (std::string &t : texts) all.push_back(t.data());
      all.push_back(nullptr);
      return all;
    };
    ::execve(words[0].c_str(), pointers(words).data(), pointers(environment).data());
    ::_exit(127);
  }
  ~terminal_program() {
    ::close(terminal_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      testing::wait_for(pid_);
    }
  }
  void press(const std::string &keys) const {
    EXPECT_EQ(::write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Whether it shows this, from now on.
  bool shows(const std::string &text) {
    std::string shown;
    for (int i = 0; i < 1000; ++i) {
      pollfd p{terminal_, POLLIN, 0};
      char buffer[4096];
      if (::poll(&p, 1, 20) <= 0) continue;
      const ssize_t n = ::read(terminal_, buffer, sizeof buffer);
      if (n <= 0) break;
      shown.append(buffer, static_cast<std::size_t>(n));
      if (shown.find(text) != std::string::npos) return true;
    }
    ADD_FAILURE() << "'" << text << "' is not in:\n" << shown;
    return false;
  }
  // What it exits with; what it writes until then must be read.
  int wait() {
    for (int i = 0; i < 1000; ++i) {
      pollfd p{terminal_, POLLIN, 0};
      char buffer[4096];
      if (::poll(&p, 1, 20) > 0 && ::read(terminal_, buffer, sizeof buffer) <= 0)
        return testing::wait_for(std::exchange(pid_, -1));
    }
    ADD_FAILURE() << "it does not end";
    return -1;
  }
  void resize(unsigned short rows, unsigned short columns) const {
    winsize size{rows, columns, 0, 0};
    ::ioctl(terminal_, TIOCSWINSZ, &size);
  }

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
};

enum class suspended : bool { no, yes };
bool becomes(const operated_program &p, suspended what) {
  for (int i = 0; i < 1000; ++i) {
    const auto status = p.as_operator().status();
    if (!status) return false;
    const bool away = status->tags[0].mapped_bytes == 0;
    const bool busy = status->job.request != control::request_kind::none;
    if (!busy && away == (what == suspended::yes)) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST_F(top, suspends_and_resumes_by_keys) {
  const auto p = start_here();
  client_setting setting;
  setting.preloaded = false;
  setting.variables = {machine_, "TERM=xterm"};
  // Not the tasks of tests beside this one.
  terminal_program screen({built("../tools/stillmap"), "top", "--interval", "0.2", "--filter",
                           std::to_string(p->pid())},
                          environment(setting));
  ASSERT_TRUE(screen.shows(std::to_string(p->pid())));
  screen.press("js");
  ASSERT_TRUE(screen.shows("suspend all memory of " + std::to_string(p->pid())));
  screen.press("n");
  ASSERT_TRUE(screen.shows("up down select"));
  EXPECT_EQ(p->ask("constant"), "right");
  // Between two pictures only what differs is written, so that the words are not there.
  screen.press("sy");
  EXPECT_TRUE(becomes(*p, suspended::yes));
  screen.press("r");
  EXPECT_TRUE(becomes(*p, suspended::no));
  EXPECT_EQ(p->ask("constant"), "right");
  screen.press("\r");
  ASSERT_TRUE(screen.shows(p->address()));
  screen.press("x>");
  screen.resize(10, 60);
  ASSERT_TRUE(screen.shows("live"));
  screen.press("q");
  EXPECT_EQ(screen.wait(), 0);
}

}  // namespace
}  // namespace stillmap
