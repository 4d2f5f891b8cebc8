#include "stillmap/checkpoint/control/status_query.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/server_reply.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

constexpr std::chrono::milliseconds at_once{0};
// How often to try again to connect to a process whose backlog is full.
constexpr std::chrono::milliseconds connect_interval{20};
constexpr std::chrono::milliseconds reply_interval{5};

// One process that is asked.
class status_query {
 public:
  explicit status_query(const std::string &address) : address_(address) {}

  bool done() const { return outcome_.has_value(); }
  bool connected() const { return done() || server_; }
  int fd() const { return server_ ? server_->fd() : -1; }

  // Does what can be done without waiting.
  void advance() {
    auto now = step();
    if (!now) {
      outcome_.emplace(tl::unexpected(now.error()));
    } else if (*now) {
      outcome_.emplace(std::move(**now));
    }
    if (outcome_) server_.reset();
  }
  const std::optional<checkpoint::peer_credentials> &server() const { return peer_; }

  result<process_status> take(std::chrono::milliseconds timeout) {
    auto out = outcome_ ? std::move(*outcome_)
                        : make_error(errc::busy, "the peer did not answer in time",
                                     static_cast<std::uint64_t>(timeout.count()), 0,
                                     error_unit::milliseconds);
    if (!out) return tl::unexpected(out.error().about(address_));
    return out;
  }

 private:
  // Nullopt: it has not replied yet.
  result<std::optional<process_status>> step() {
    if (!server_) {
      auto connected = checkpoint::socket_channel::try_connect(address_);
      if (!connected && connected.error().code == std::errc::resource_unavailable_try_again) {
        return std::nullopt;
      }
      STILLMAP_RETURN_IF_ERROR(connected);
      peer_ = connected->peer();
      STILLMAP_RETURN_IF_ERROR(check_server_user(*connected));
      server_.emplace(std::move(*connected));
      sent_ = server_->send(static_cast<std::uint16_t>(kind::status), encode(empty_request{}), {},
                            at_once, {});
    }
    const auto whole = server_->peek(max_response_bytes);
    // A server that refuses a connection does not read the request; its refusal is the reason.
    if (!whole) return tl::unexpected(sent_ ? whole.error() : sent_.error());
    if (*whole == nullptr) return std::nullopt;
    STILLMAP_ASSIGN_OR_RETURN(auto m, server_->receive(max_response_bytes, at_once, {}));
    STILLMAP_ASSIGN_OR_RETURN(const bytes body, response_in(std::move(m)));
    return decode<process_status>(body);
  }

  const std::string &address_;
  std::optional<checkpoint::socket_channel> server_;
  std::optional<checkpoint::peer_credentials> peer_;
  status sent_;
  std::optional<result<process_status>> outcome_;
};

}  // namespace

result<std::vector<queried_status>> query_status(std::span<const std::string> addresses,
                                                 std::chrono::milliseconds timeout) {
  return with_host_memory("control::query_status", [&]() -> result<std::vector<queried_status>> {
    std::vector<status_query> all(addresses.begin(), addresses.end());
    const auto until = std::chrono::steady_clock::now() + timeout;
    std::vector<pollfd> fds;
    std::vector<status_query *> polled;  // of each
    for (;;) {
      for (std::size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].revents != 0) polled[i]->advance();
      }
      fds.clear();
      polled.clear();
      for (status_query &q : all) {
        if (fds.size() == max_open_queries) break;
        if (!q.connected()) q.advance();
        if (q.done()) continue;
        fds.push_back({q.fd(), POLLIN, 0});
        polled.push_back(&q);
      }
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      if (fds.empty() || left <= at_once) break;
      (void)::poll(fds.data(), fds.size(),
                   static_cast<int>(std::min(left, connect_interval).count()));
      if (fds.size() == 1) continue;
      // Those that reply at almost the same time are one wake-up.
      std::this_thread::sleep_for(reply_interval);
      (void)::poll(fds.data(), fds.size(), 0);
    }
    std::vector<queried_status> out;
    for (status_query &q : all) {
      auto server = q.server();
      out.push_back({q.take(timeout), server});
    }
    return out;
  });
}

}  // namespace stillmap::control
