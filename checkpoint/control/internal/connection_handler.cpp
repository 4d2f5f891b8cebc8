#include "stillmap/checkpoint/control/internal/connection_handler.h"

#include <poll.h>
#include <unistd.h>

#include <system_error>
#include <thread>
#include <utility>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/start_thread.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

constexpr auto progress_interval = std::chrono::milliseconds(50);
constexpr int poll_interval_ms = 50;

// Decodes a request, runs it, and encodes its result. Throws only where a request has been carried
// out, and the host has no memory for the response.
template <class Request>
result<bytes> run(const char *operation, request_record &record,
                  const checkpoint::socket_message &m, const auto &run_it) {
  const auto done = with_host_memory(operation, [&]() -> decltype(run_it(Request())) {
    STILLMAP_ASSIGN_OR_RETURN(const Request r, decode<Request>(m.body));
    record.describe(r);
    return run_it(r);
  });
  record.end(done ? nullptr : &done.error());
  if (!done) return tl::unexpected(done.error());
  return encode(*done);
}

// Outside of the operation of a request.
tl::unexpected<error> refused(errc c, const char *reason, std::uint64_t value = 0,
                              std::uint64_t limit = 0, error_unit unit = error_unit::none) {
  const operation_scope scope("control::server");
  return make_error(c, reason, value, limit, unit);
}

// Both enumerations have the requests in one order. none: it is no request.
request_kind request_of(std::uint16_t k) {
  constexpr auto first = static_cast<std::uint16_t>(kind::status);
  constexpr auto last = static_cast<std::uint16_t>(kind::restore);
  constexpr auto offset = first - static_cast<std::uint16_t>(request_kind::status);
  static_assert(last - offset == static_cast<int>(request_kind::restore));
  return k < first || k > last ? request_kind::none : static_cast<request_kind>(k - offset);
}

short events_of(int fd, short events) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, 0) > 0 ? p.revents : short{0};
}

}  // namespace

void refuse(checkpoint::socket_channel &with, const error &why) noexcept {
  (void)with_host_memory([&] {
    return with.send(static_cast<std::uint16_t>(kind::refusal), encode(why), {},
                     std::chrono::milliseconds(0), {});
  });
}

void connection_handler::serve() noexcept {
  // A failure leaves the connection to be closed without a response: the request may have been
  // carried out, and status() tells.
  (void)with_host_memory([&]() -> status {
    serve_request();
    return {};
  });
}

void connection_handler::serve_request() {
  const auto by = std::chrono::steady_clock::now() + options_.timeout;
  const auto request = with_.receive(max_request_bytes, options_.timeout, stop_, by);
  if (claimed_.exchange(true)) {
    return refuse(with_,
                  refused(errc::busy, "too many connections, and no request has come on this one",
                          options_.max_connections, options_.max_connections, error_unit::items)
                      .value());
  }
  record_.begin(with_, address_);  // without host memory for it, the request is not carried out
  if (!request) {
    // A client that sends nothing, or goes away, has asked for nothing.
    if (request.error().is(errc::corrupt)) record_.end(&request.error());
    return refuse(with_, request.error());
  }
  // A process that was stopped finds requests whose clients have long given them up.
  if ((events_of(with_.fd(), 0) & (POLLHUP | POLLERR)) != 0) return;
  const result<bytes> reply = respond(*request);
  if (!reply) record_.end(&reply.error());
  const kind k = reply ? kind::response : kind::refusal;
  const bytes refusal = reply ? bytes() : encode(reply.error());
  // The request has been carried out even if the client does not read the response; status() tells.
  (void)with_.send(static_cast<std::uint16_t>(k), reply ? *reply : refusal, {}, options_.timeout,
                   stop_, std::chrono::steady_clock::now() + options_.timeout);
}

result<bytes> connection_handler::respond(const checkpoint::socket_message &m) {
  record_.set_kind(request_of(m.kind));
  if (!m.fds.empty()) {
    return refused(errc::corrupt, "the request carries file descriptors", m.fds.size(), 0,
                   error_unit::items);
  }
  if (options_.not_ready != nullptr) {
    return refused(errc::busy, options_.not_ready);
  }
  switch (static_cast<kind>(m.kind)) {
    case kind::status:
      return run<empty_request>("control::status", record_, m, [&](const auto &) {
        return result<process_status>(executor_.status());
      });
    case kind::suspend:
      return run<suspend_request>("control::suspend", record_, m,
                                  [&](const auto &r) { return executor_.suspend(r, stop_); });
    case kind::resume:
      return run<resume_request>("control::resume", record_, m,
                                 [&](const auto &r) { return executor_.resume(r); });
    case kind::snapshot:
      return run<snapshot_request>("control::snapshot", record_, m, [&](const auto &r) {
        return executor_.snapshot(r, stop_, [this](const auto &p) { return report(p); });
      });
    case kind::restore:
      return run<restore_request>("control::restore", record_, m, [&](const auto &r) {
        return executor_.restore(r, stop_, [this](const auto &p) { return report(p); });
      });
    case kind::handoff:
      return run<handoff_request>("control::handoff", record_, m, [&](const auto &r) {
        return while_connected<handoff::sent_memory>(
            [&](const auto &gone) { return executor_.handoff(r, stop_, gone); });
      });
    case kind::migrate:
      return run<migrate_request>("control::migrate", record_, m, [&](const auto &r) {
        auto last = migration::step::described;
        const auto on_progress = [&](const migration::progress &p) {
          send_progress(kind::migration_progress, p, std::exchange(last, p.step) != p.step);
        };
        // Cancelled if its client is gone, as a snapshot is.
        return while_connected<migration::sent_memory>(
            [&](const auto &gone) { return executor_.migrate(r, gone, on_progress); });
      });
    case kind::resolve:
      return run<empty_request>("control::resolve", record_, m,
                                [&](const auto &) { return executor_.resolve(); });
    case kind::abort:
      return run<empty_request>("control::abort", record_, m,
                                [&](const auto &) { return executor_.abort(stop_); });
    case kind::snapshot_progress:
    case kind::response:
    case kind::refusal:
    case kind::migration_progress:
      break;
  }
  return refused(errc::corrupt, "not a request (its kind)", m.kind);
}

// Skips the message if the socket buffer is full, so that a client that does not read delays
// nothing. Also skips it if the host has no memory for it.
void connection_handler::send_progress(kind k, const auto &p, bool at_once) noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (!at_once && now - last_progress_ < progress_interval) return;
  if ((events_of(with_.fd(), POLLOUT) & POLLOUT) == 0) return;
  last_progress_ = now;
  // The client may have closed the connection; client_is_gone() finds out.
  (void)with_host_memory([&] {
    return with_.send(static_cast<std::uint16_t>(k), encode(p), {}, options_.timeout, {});
  });
}

// A snapshot or a restore is cancelled if its client is gone, but not if the client only does not read.
bool connection_handler::report(const snapshot_progress &p) {
  if (client_is_gone()) return false;
  send_progress(kind::snapshot_progress, p, false);
  return true;
}

// What runs may do nothing for long that would notice it, so a thread watches the connection.
template <class T>
result<T> connection_handler::while_connected(
    const std::function<result<T>(std::stop_token)> &run) {
  std::stop_source gone;
  const std::stop_callback on_stop(stop_, [&] { gone.request_stop(); });
  std::jthread watcher;
  try {
    watcher = start_thread([&](const std::stop_token &over) {
      while (!over.stop_requested()) {
        pollfd p{with_.fd(), POLLRDHUP, 0};
        if (::poll(&p, 1, poll_interval_ms) <= 0) continue;
        gone.request_stop();
        return;
      }
    });
  } catch (const std::system_error &e) {
    return make_system_error(e.code().value(), "no thread could be created");
  }
  return run(gone.get_token());
}

bool connection_handler::client_is_gone() const {
  return (events_of(with_.fd(), POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace stillmap::control
