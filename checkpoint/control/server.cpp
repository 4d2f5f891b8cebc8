#include "stillmap/checkpoint/control/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <thread>

#include "stillmap/checkpoint/control/internal/connection_handler.h"
#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {
namespace {

constexpr const char *op = "control::server";
using handoff::connection;
using handoff::listener;

// A path that a process left behind when it died: nobody listens, and it is a socket.
bool is_left_over(const std::string &where) {
  struct stat st {};
  if (where.starts_with('@') || ::lstat(where.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) {
    return false;
  }
  const auto answered = connection::connect(where);
  return !answered && answered.error().code == std::errc::connection_refused;
}

result<listener> listen_at(const std::string &where) {
  auto made = listener::create(where);
  if (made || !made.error().is(errc::busy) || !is_left_over(where)) return made;
  ::unlink(where.c_str());
  return listener::create(where);
}

}  // namespace

class server::core {
 public:
  core(const device &d, listener at, owned_fd wake, std::string where, server_options options)
      : options_(std::move(options)),
        where_(std::move(where)),
        at_(std::move(at)),
        wake_(std::move(wake)),
        does_(d, options_),
        thread_([this](std::stop_token stop) { listen(stop); }) {}

  ~core() {
    thread_.request_stop();
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t told = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  const std::string &where() const { return where_; }

 private:
  struct visit {
    std::atomic<bool> over{false};
    std::jthread thread;  // goes first
  };

  void listen(const std::stop_token &stop) {
    while (!stop.stop_requested()) {
      pollfd both[2] = {{at_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (::poll(both, 2, -1) < 0 && errno != EINTR) break;
      if (both[1].revents != 0) break;
      if ((both[0].revents & POLLIN) == 0) continue;
      auto came = at_.accept(handoff::patience(0));
      visits_.remove_if([](const visit &v) { return v.over.load(); });
      if (came) {
        receive(std::move(*came));
      } else if (came.error().code == std::errc::too_many_files_open ||
                 came.error().code == std::errc::too_many_files_open_in_system) {
        // Whoever waits goes on waiting, and asking again at once would be a busy loop.
        std::this_thread::sleep_for(handoff::patience(100));
      }
    }
    for (visit &v : visits_) v.thread.request_stop();
    visits_.clear();
  }

  void receive(connection with) {
    if (visits_.size() >= options_.most_askers) {
      turn_away(with, error{make_error_code(errc::busy), op, "too many ask at once",
                            visits_.size(), options_.most_askers});
      return;
    }
    visit &v = visits_.emplace_back();
    v.thread = std::jthread([this, &v, c = std::move(with)](std::stop_token stop) mutable {
      asker(std::move(c), options_, does_, std::move(stop)).serve();
      v.over = true;
    });
  }

  const server_options options_;
  const std::string where_;
  listener at_;
  owned_fd wake_;
  operations does_;
  std::list<visit> visits_;  // of thread_ only
  std::jthread thread_;
};

result<std::unique_ptr<server>> server::start(const device &d, const std::string &where,
                                              server_options options) {
  if (options.most_askers == 0) {
    return make_error(errc::invalid_argument, op, "nobody could ask");
  }
  auto at = listen_at(where);
  if (!at) return tl::unexpected(at.error());
  owned_fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake.get() < 0) {
    return tl::unexpected<error>(
        error{std::error_code(errno, std::system_category()), op, "no event can be made", 0, 0});
  }
  return std::unique_ptr<server>(new server(
      std::make_unique<core>(d, std::move(*at), std::move(wake), where, std::move(options))));
}

server::server(std::unique_ptr<core> c) : core_(std::move(c)) {}
server::~server() = default;
const std::string &server::where() const {
  return core_->where();
}

}  // namespace stillmap::control
