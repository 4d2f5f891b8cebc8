#include "stillmap/checkpoint/base/socket_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <list>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/base/socket_listener.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {

class socket_server::core {
 public:
  core(socket_listener at, fork_closed_fd wake, socket_server_options options, handler serve)
      : options_(std::move(options)),
        serve_(std::move(serve)),
        listener_(std::move(at)),
        wake_(std::move(wake)),
        thread_(start_thread([this](std::stop_token stop) { listen(stop); })) {}

  ~core() {
    thread_.request_stop();
    wake();
    thread_.join();
  }

 private:
  struct served_connection {
    std::atomic<bool> claimed{false};  // by its handler, for a request, or by drop_idle()
    std::atomic<bool> over{false};
    std::optional<socket_channel> with;
    lease kept;           // written before `over`
    std::jthread thread;  // destroyed first
  };

  void wake() noexcept {
    const std::uint64_t one = 1;
    // An eventfd accepts at least one write.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void listen(const std::stop_token &stop) noexcept {
    const operation_scope scope(options_.server);
    while (!stop.stop_requested()) {
      bool incoming = false;
      const status polled = with_host_memory([&] { return wait(incoming); });
      if (stop.stop_requested()) break;
      collect();
      // Without host memory or descriptors, polling again at once would be a busy loop.
      if (!polled || (incoming && !accept())) {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    for (served_connection &c : connections_) c.thread.request_stop();
    connections_.clear();
    leases_.clear();
  }

  // Sleeps until a client connects, a handler has ended, or a lease has.
  status wait(bool &incoming) {
    std::vector<pollfd> fds{{listener_.fd(), POLLIN, 0}, {wake_.get(), POLLIN, 0}};
    for (const served_connection &l : leases_) fds.push_back({l.with->fd(), POLLIN | POLLRDHUP, 0});
    if (::poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) return {};
      return make_system_error(errno, "the connections cannot be watched");
    }
    std::uint64_t count = 0;
    if (fds[1].revents != 0) (void)!::read(wake_.get(), &count, sizeof count);
    auto fd = fds.begin() + 2;
    std::erase_if(leases_, [&](const served_connection &) { return (fd++)->revents != 0; });
    incoming = (fds.front().revents & POLLIN) != 0;
    return {};
  }

  // Ends the threads of connections that have been served, and closes those without a lease.
  void collect() noexcept {
    for (auto c = connections_.begin(); c != connections_.end();) {
      const auto served = c++;
      if (!served->over.load()) continue;
      served->thread.join();
      if (served->kept != nullptr) {
        leases_.splice(leases_.end(), connections_, served);
      } else {
        connections_.erase(served);
      }
    }
  }

  // False: the process lacks descriptors or memory, and the connection stays in the backlog.
  bool accept() noexcept {
    auto accepted =
        with_host_memory([&] { return listener_.accept(std::chrono::milliseconds(0)); });
    if (!accepted) return accepted.error().is(errc::busy);  // busy: the client is gone
    if (is_allowed(*accepted)) serve(std::move(*accepted));
    return true;
  }

  // Before the connection takes a place that one of a permitted user needs.
  bool is_allowed(socket_channel &with) noexcept {
    const peer_credentials &client = with.peer();
    const status allowed = with_host_memory([&]() -> status {
      if (options_.allow ? options_.allow(client) : is_same_user_or_root(client)) return {};
      return make_error(errc::not_supported, options_.forbidden, client.uid);
    });
    if (!allowed) options_.refuse(with, allowed.error());
    return allowed.has_value();
  }

  void serve(socket_channel with) noexcept {
    if (connections_.size() >= options_.max_connections && !drop_idle()) {
      options_.refuse(with, make_error(errc::busy, "too many connections", connections_.size(),
                                       options_.max_connections, error_unit::items)
                                .value());
      return;
    }
    std::list<served_connection> made;
    try {
      served_connection &c = made.emplace_back();
      c.with.emplace(std::move(with));
      c.thread = start_thread([this, &c](const std::stop_token &stop) {
        c.kept = serve_(*c.with, c.claimed, stop);
        c.over = true;
        wake();
      });
      connections_.splice(connections_.end(), made);
    } catch (const std::system_error &e) {
      options_.refuse(*made.front().with,
                      make_system_error(e.code().value(), "no thread could be created").value());
    } catch (const std::bad_alloc &) {
      options_.refuse(made.empty() ? with : *made.front().with, host_out_of_memory().value());
    }
  }

  // Ends the oldest connection on which no request has come yet, so that clients which say nothing
  // keep no other out. False: there is none.
  bool drop_idle() noexcept {
    for (auto c = connections_.begin(); c != connections_.end(); ++c) {
      if (c->claimed.exchange(true)) continue;
      c->thread.request_stop();
      // Its thread sees the end of the stream at once, and the next client need not wait for it.
      (void)::shutdown(c->with->fd(), SHUT_RD);
      connections_.erase(c);
      return true;
    }
    return false;
  }

  const socket_server_options options_;
  const handler serve_;
  socket_listener listener_;
  fork_closed_fd wake_;
  // Of thread_ only.
  std::list<served_connection> connections_, leases_;
  std::jthread thread_;
};

result<socket_server> socket_server::create(const std::string &address,
                                            socket_server_options options, handler serve) {
  return with_host_memory("socket_server::create", [&]() -> result<socket_server> {
    if (options.max_connections == 0) {
      return make_error(errc::invalid_argument, "max_connections is 0");
    }
    STILLMAP_ASSIGN_OR_RETURN(socket_listener at, socket_listener::create(address));
    auto wake = fork_closed_fd::create([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
    if (wake.get() < 0) return make_system_error(errno, "no eventfd could be created");
    try {
      return socket_server(std::make_unique<core>(std::move(at), std::move(wake),
                                                  std::move(options), std::move(serve)));
    } catch (const std::system_error &e) {
      return make_system_error(e.code().value(), "no thread could be created");
    }
  });
}

socket_server::socket_server(std::unique_ptr<core> c) noexcept : core_(std::move(c)) {}
socket_server::socket_server(socket_server &&) noexcept = default;
socket_server &socket_server::operator=(socket_server &&) noexcept = default;
socket_server::~socket_server() = default;

}  // namespace stillmap::checkpoint
