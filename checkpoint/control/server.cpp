#include "stillmap/checkpoint/control/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/checkpoint/control/internal/connection_handler.h"
#include "stillmap/checkpoint/control/internal/executor.h"
#include "stillmap/vmm/base/creating_process.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

using checkpoint::socket_channel;
using checkpoint::socket_listener;

}  // namespace

class server::core {
 public:
  core(const device &d, socket_listener at, fork_closed_fd wake, std::string address,
       server_options options)
      : options_(std::move(options)),
        address_(std::move(address)),
        listener_(std::move(at)),
        wake_(std::move(wake)),
        executor_(d, options_),
        thread_(start_thread([this](std::stop_token stop) { listen(stop); })) {}

  ~core() {
    thread_.request_stop();
    const std::uint64_t one = 1;
    // An eventfd accepts at least one write.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  const std::string &address() const { return address_; }
  const creating_process &process() const { return process_; }

 private:
  struct served_connection {
    std::atomic<bool> claimed{false};  // by its handler, for a request, or by drop_idle()
    std::atomic<bool> over{false};
    std::optional<socket_channel> with;
    std::jthread thread;  // destroyed first
  };

  void listen(const std::stop_token &stop) noexcept {
    const operation_scope scope("control::server");
    while (!stop.stop_requested()) {
      pollfd fds[2] = {{listener_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) break;
      if (fds[1].revents != 0) break;
      if ((fds[0].revents & POLLIN) == 0) continue;
      auto accepted =
          with_host_memory([&] { return listener_.accept(std::chrono::milliseconds(0)); });
      connections_.remove_if([](const served_connection &c) { return c.over.load(); });
      if (accepted) {
        if (is_allowed(*accepted)) serve(std::move(*accepted));
      } else if (!accepted.error().is(errc::busy)) {  // busy: the client is gone
        // The process lacks descriptors or memory. The connection stays in the backlog; polling
        // again at once would be a busy loop.
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    for (served_connection &c : connections_) c.thread.request_stop();
    connections_.clear();
  }

  // Before the connection takes a place that one of a permitted user needs.
  bool is_allowed(socket_channel &with) noexcept {
    const checkpoint::peer_credentials &client = with.peer();
    const status allowed = with_host_memory([&]() -> status {
      if (options_.allow ? options_.allow(client) : checkpoint::is_same_user_or_root(client))
        return {};
      return make_error(errc::not_supported, "this user may not control the process (its uid)",
                        client.uid);
    });
    if (!allowed) refuse(with, allowed.error());
    return allowed.has_value();
  }

  void serve(socket_channel with) noexcept {
    if (connections_.size() >= options_.max_connections && !drop_idle()) {
      refuse(with, make_error(errc::busy, "too many connections", connections_.size(),
                              options_.max_connections, error_unit::items)
                       .value());
      return;
    }
    std::list<served_connection> made;
    try {
      served_connection &c = made.emplace_back();
      c.with.emplace(std::move(with));
      c.thread = start_thread([this, &c](std::stop_token stop) {
        connection_handler(std::move(*c.with), executor_, options_, c.claimed, std::move(stop))
            .serve();
        c.with.reset();
        c.over = true;
      });
      connections_.splice(connections_.end(), made);
    } catch (const std::system_error &e) {
      refuse(*made.front().with,
             make_system_error(e.code().value(), "no thread could be created").value());
    } catch (const std::bad_alloc &) {
      refuse(made.empty() ? with : *made.front().with, host_out_of_memory().value());
    }
  }

  // Ends the oldest connection on which no request has come yet, so that clients which say nothing
  // keep no other out. Waits until it has noticed, a few milliseconds. False: there is none.
  bool drop_idle() noexcept {
    for (auto c = connections_.begin(); c != connections_.end(); ++c) {
      if (c->claimed.exchange(true)) continue;
      c->thread.request_stop();
      connections_.erase(c);
      return true;
    }
    return false;
  }

  const creating_process process_;
  const server_options options_;
  const std::string address_;
  socket_listener listener_;
  fork_closed_fd wake_;
  executor executor_;
  std::list<served_connection> connections_;  // of thread_ only
  std::jthread thread_;
};

result<server> server::create(const device &d, const std::string &address, server_options options) {
  return with_host_memory("control::server::create", [&]() -> result<server> {
    if (options.max_connections == 0) {
      return make_error(errc::invalid_argument, "max_connections is 0");
    }
    STILLMAP_ASSIGN_OR_RETURN(socket_listener at, socket_listener::create(address));
    auto wake = fork_closed_fd::create([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (wake.get() < 0) return make_system_error(errno, "no eventfd could be created");
    try {
      return server(
          std::make_unique<core>(d, std::move(at), std::move(wake), address, std::move(options)));
    } catch (const std::system_error &e) {
      return make_system_error(e.code().value(), "no thread could be created");
    }
  });
}

server::server(std::unique_ptr<core> c) : core_(std::move(c)) {}
server::server(server &&) noexcept = default;
server::~server() {
  if (core_ && !core_->process().is_current()) (void)core_.release();
}
const std::string &server::address() const {
  return core_->address();
}

}  // namespace stillmap::control
