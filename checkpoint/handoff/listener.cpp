#include "stillmap/checkpoint/handoff/listener.h"

#include <poll.h>

#include <utility>
#include <vector>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/unix_socket.h"
#include "stillmap/checkpoint/handoff/internal/wire.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::handoff {
namespace {

constexpr std::size_t max_hello_bytes = 64;

bool is_hello(const checkpoint::socket_message &m) {
  return m.kind == static_cast<std::uint16_t>(kind::hello) && m.fds.empty() &&
         decode_hello(m.body).has_value();
}

// Best effort: the stranger is disconnected in any case.
void refuse(connection &stranger, const error &why) noexcept {
  (void)with_host_memory([&] {
    return stranger.send(static_cast<std::uint16_t>(kind::error), checkpoint::encode(why), {},
                         std::chrono::milliseconds(0), {});
  });
}

}  // namespace

result<listener> listener::create(const std::string &address) {
  const operation_scope scope("handoff::listener::create");
  STILLMAP_ASSIGN_OR_RETURN(auto at, checkpoint::socket_listener::create(address));
  return listener(std::move(at));
}

void listener::keep_if_allowed(std::list<connection> one,
                               const std::function<bool(const peer_credentials &)> &allow) {
  connection &c = one.front();
  if (!(allow ? allow(c.peer()) : checkpoint::is_same_user_or_root(c.peer()))) {
    return refuse(
        c, make_error(errc::not_supported, "the user of the peer process is not allowed (its uid)",
                      c.peer().uid)
               .value());
  }
  if (silent_.size() == max_silent) silent_.pop_front();
  silent_.splice(silent_.end(), one);
}

// The oldest connection with a hello; empty: none has one. Closes those that are gone, or have begun
// something else.
result<std::list<connection>> listener::take_peer() {
  const operation_scope scope("handoff::listener::take_peer");
  std::list<connection> out;
  for (auto c = silent_.begin(); c != silent_.end();) {
    const auto at = c++;
    const auto first = at->peek(max_hello_bytes);
    if (first && *first == nullptr) continue;
    if (!first && first.error().code == std::errc::not_enough_memory) {
      return tl::unexpected(first.error());
    }
    if (first && is_hello(**first)) {
      out.splice(out.end(), silent_, at);
      return out;
    }
    if (first || first.error().is(errc::corrupt)) {
      refuse(*at, make_error(errc::corrupt,
                             "this socket is for handoffs, and the first message is not a hello")
                      .value());
    }
    silent_.erase(at);
  }
  return out;
}

result<connection> listener::accept(std::chrono::milliseconds timeout, std::stop_token cancel,
                                    const std::function<bool(const peer_credentials &)> &allow) {
  return with_host_memory("handoff::listener::accept", [&]() -> result<connection> {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (;;) {
      STILLMAP_ASSIGN_OR_RETURN(auto one, at_.accept_now());
      const bool more = !one.empty();
      if (more) keep_if_allowed(std::move(one), allow);
      STILLMAP_ASSIGN_OR_RETURN(auto peer, take_peer());
      if (!peer.empty()) return std::move(peer.front());
      // Endless strangers are no reason to exceed the timeout.
      if (more && !cancel.stop_requested() && std::chrono::steady_clock::now() < until) continue;
      std::vector<pollfd> fds{{at_.fd(), POLLIN, 0}};
      for (const connection &c : silent_) fds.push_back({c.fd(), POLLIN, 0});
      STILLMAP_RETURN_IF_ERROR(checkpoint::wait_for(fds, timeout, cancel, until));
    }
  });
}

}  // namespace stillmap::handoff
