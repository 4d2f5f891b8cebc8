// Forked children: they have no descriptor of a server, keep no address in use, and take nothing away
// from their parent when they destroy their copies.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/checkpoint/control/client.h"
#include "stillmap/checkpoint/control/server.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "tests/checkpoint/control/task.h"
#include "tests/checkpoint/migration/endpoints.h"
#include "tests/support/unique_name.h"

namespace stillmap::control::testing {
namespace {

using namespace std::chrono_literals;
using stillmap::testing::unique_name;
namespace fs = std::filesystem;

// Numbers and what they lead to.
std::map<int, std::string> open_descriptors() {
  std::map<int, std::string> out;
  for (const auto &entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor that lists them
    const fs::path leads_to = fs::read_symlink(entry.path(), gone);
    if (!gone) out[std::stoi(entry.path().filename().string())] = leads_to.string();
  }
  std::erase_if(out, [](const auto &d) {
    return ::access(d.second.c_str(), F_OK) == 0 && d.second.starts_with("/proc/");
  });
  return out;
}

// A forked child, which lives until this is destroyed.
class forked_child {
 public:
  // `act` runs in the child after it has listed its descriptors.
  explicit forked_child(const std::map<int, std::string> &before,
                        const std::function<void()> &act = {}) {
    int said[2], over[2];
    if (::pipe(said) != 0 || ::pipe(over) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      std::string list;
      for (const auto &[number, leads_to] : open_descriptors()) {
        const bool own =
            number == said[0] || number == said[1] || number == over[0] || number == over[1];
        if (!own && !before.contains(number)) list += leads_to + '\n';
      }
      ::close(said[0]);
      ::close(over[1]);
      [[maybe_unused]] ssize_t n = ::write(said[1], list.data(), list.size());
      if (act) act();
      ::close(said[1]);
      char nothing;
      n = ::read(over[0], &nothing, 1);
      ::_exit(0);
    }
    ::close(said[1]);
    ::close(over[0]);
    over_ = over[1];
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(said[0], buffer, sizeof buffer)) > 0;) {
      has_.append(buffer, static_cast<std::size_t>(n));
    }
    ::close(said[0]);
  }
  forked_child(const forked_child &) = delete;
  ~forked_child() {
    ::close(over_);
    int how = -1;
    ::waitpid(pid_, &how, 0);
    EXPECT_EQ(how, 0) << "how the child ended";
  }
  // The descriptors that it has, and that were not open before, a line each.
  const std::string &has() const { return has_; }

 private:
  pid_t pid_ = -1;
  int over_ = -1;
  std::string has_;
};

using forked_servers = control_test;

TEST_F(forked_servers, of_control_are_their_parents) {
  const std::string path = unique_name("/tmp/stillmap-forked");
  const auto before = open_descriptors();
  std::optional<server> served(std::move(*server::create(dev(), path)));
  std::optional<checkpoint::socket_channel> client_end(
      std::move(*checkpoint::socket_channel::connect(path, 30s)));
  ASSERT_TRUE(client(path).status()) << "and the connection before it is accepted";
  {
    const forked_child child(before, [&] {
      served.reset();
      client_end.reset();
    });
    EXPECT_EQ(child.has(), "");
    EXPECT_TRUE(fs::exists(path)) << "a child has removed it";
    EXPECT_TRUE(client(path).status());
    served.reset();
    const auto again = server::create(dev(), path);
    EXPECT_TRUE(again) << again.error().message();
  }
}

// Regression: an abstract name was in use until the last worker of a dead task had ended.
TEST_F(forked_servers, keep_no_abstract_name_in_use) {
  start();
  const forked_child child({});
  stop();
  EXPECT_NO_THROW(start());
}

TEST_F(forked_servers, of_handoff_are_their_parents) {
  const std::string path = unique_name("/tmp/stillmap-forked");
  const auto before = open_descriptors();
  std::optional<checkpoint::socket_listener> at(
      std::move(*checkpoint::socket_listener::create(path)));
  std::optional<checkpoint::socket_channel> client_end(
      std::move(*checkpoint::socket_channel::connect(path, 30s)));
  const forked_child child(before, [&] {
    at.reset();
    client_end.reset();
  });
  EXPECT_EQ(child.has(), "");
  EXPECT_TRUE(fs::exists(path)) << "a child has removed it";
  EXPECT_TRUE(checkpoint::socket_channel::connect(path));
  at.reset();
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(forked_servers, of_migration_are_their_parents) {
  const migration::testing::test_site site;
  const auto before = open_descriptors();
  auto at = migration::testing::at_destination(site);
  const std::string where = at->address();
  std::optional<migration::receiver> receives(std::move(*migration::receiver::create(
      dev(), std::move(at), migration::testing::destination_options(site))));
  const auto to = *migration::create_tls_transport(where, site.of("source"));
  auto channel = to->connect(30s);
  ASSERT_TRUE(channel) << channel.error().message();
  ASSERT_TRUE((*channel)->handshake(30s)) << "and so it is accepted";
  const forked_child child(before, [&] {
    (*channel)->shutdown();
    channel->reset();
    receives.reset();
  });
  EXPECT_EQ(child.has(), "");
  auto second = to->connect(30s);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_TRUE((*second)->handshake(30s)) << "a child has shut the listening socket down";
  channel->reset();
  second->reset();
  receives.reset();
  EXPECT_TRUE(migration::create_tls_acceptor(where, site.of("destination"))) << where;
}

// The disk has its room again when the task ends, not when its last worker does.
TEST_F(forked_servers, have_no_file_of_suspended_memory) {
  make_memory();
  start();
  const auto before = open_descriptors();
  suspend_request r{"weights", checkpoint::backing_store::file, ::testing::TempDir()};
  const auto asleep = ask().suspend(r);
  ASSERT_TRUE(asleep) << asleep.error().message();
  const forked_child child(before);
  EXPECT_EQ(child.has(), "");
  EXPECT_TRUE(ask().resume("weights"));
  EXPECT_TRUE(memory_is_whole());
}

}  // namespace
}  // namespace stillmap::control::testing
