// Servers that start at the same address at once.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>
#include <optional>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {
namespace {

class server_start : public control_test {
 protected:
  // What a dead process leaves: a bound socket without a listener.
  void leave_a_socket_behind() const {
    const owned_fd dead(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    path_.copy(name.sun_path, sizeof name.sun_path - 1);
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr *>(&name), sizeof name), 0);
  }
  // A name of a socket has 107 bytes at most, which a folder for tests can be longer than.
  const std::string path_ = stillmap::testing::unique_name("/tmp/stillmap-server-start");
};

// Regression: each found the socket of a dead process, removed the name, which was another's by then,
// and started.
TEST_F(server_start, one_of_many_starts_and_stays_reachable) {
  constexpr int servers = 8, rounds = 60;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    if (round % 2 == 0) leave_a_socket_behind();
    std::vector<std::optional<result<server>>> started(servers);
    std::barrier at_once(servers);
    std::vector<std::thread> threads;
    for (auto &s : started) {
      threads.emplace_back([&] {
        at_once.arrive_and_wait();
        s.emplace(server::create(dev(), path_));
      });
    }
    for (std::thread &t : threads) t.join();
    int running = 0;
    for (const auto &s : started) {
      if (*s) {
        ++running;
      } else {
        EXPECT_TRUE(s->error().is(errc::busy)) << s->error().message();
      }
    }
    ASSERT_EQ(running, 1);
    const auto reached = client(path_).status();
    ASSERT_TRUE(reached) << reached.error().message();
    started.clear();
    ASSERT_FALSE(std::filesystem::exists(path_)) << "the server leaves its socket behind";
  }
}

// Regression: anybody may lock a directory that all can read, as /tmp is; no server started there.
TEST_F(server_start, a_locked_directory_keeps_none_from_starting) {
  ASSERT_TRUE(std::filesystem::create_directory(path_));
  {
    const owned_fd folder(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(folder.get(), LOCK_EX | LOCK_NB), 0);
    const auto started = server::create(dev(), path_ + "/control");
    EXPECT_TRUE(started) << started.error().message();
  }
  EXPECT_TRUE(std::filesystem::remove(path_)) << "something is left in the directory";
}

// A server does not remove the socket of another that has its name now.
TEST_F(server_start, a_server_removes_its_own_socket_only) {
  std::optional first(server::create(dev(), path_));
  ASSERT_TRUE(*first) << first->error().message();
  std::filesystem::remove(path_);
  const auto second = server::create(dev(), path_);
  ASSERT_TRUE(second) << second.error().message();
  first.reset();
  EXPECT_TRUE(client(path_).status());
}

}  // namespace
}  // namespace stillmap::control::testing
