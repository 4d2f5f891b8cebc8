#include "stillmap/checkpoint/control/internal/connection_handler.h"

#include <poll.h>
#include <unistd.h>

#include <thread>
#include <utility>

namespace stillmap::control {
namespace {

constexpr const char *op = "control::server";
constexpr auto tell_every = std::chrono::milliseconds(50);
constexpr int look_every = 50;  // milliseconds

tl::unexpected<failure> refused(errc c, const char *why, std::uint64_t value = 0) {
  return fail(error{make_error_code(c), op, why, value});
}

template <class T>
outcome<bytes> encoded(outcome<T> done) {
  if (!done) return tl::unexpected(std::move(done.error()));
  return encode(*done);
}

// The answer to what was read, done if it could be read.
template <class Request, class Do>
outcome<bytes> after(const result<Request> &read, Do &&carry_out) {
  if (!read) return fail(read.error());
  return encoded(carry_out(*read));
}

short events_of(int fd, short asked) {
  pollfd p{fd, asked, 0};
  return ::poll(&p, 1, 0) > 0 ? p.revents : short{0};
}

}  // namespace

void turn_away(handoff::connection &with, const failure &why) {
  [[maybe_unused]] const status told = with.send(static_cast<std::uint16_t>(kind::refusal),
                                                 encode(why), {}, handoff::patience(0), {});
}

void asker::serve() {
  const handoff::peer &who = with_.who();
  if (!(how_.allow ? how_.allow(who) : who.uid == ::geteuid())) {
    return turn_away(with_, error{make_error_code(errc::not_supported), op,
                                  "this user may not ask (its number)", who.uid});
  }
  const auto by = std::chrono::steady_clock::now() + how_.wait;
  const auto came = with_.receive(largest_request, how_.wait, stop_, by);
  if (!came) return turn_away(with_, came.error());
  const outcome<bytes> said = answer(*came);
  const kind k = said ? kind::answer : kind::refusal;
  // What was done is done, whether it is heard of or not: status tells.
  [[maybe_unused]] const status told = with_.send(
      static_cast<std::uint16_t>(k), said ? *said : encode(said.error()), {}, how_.wait, stop_);
}

outcome<bytes> asker::answer(const handoff::message &m) {
  if (!m.fds.empty()) {
    return refused(errc::corrupt, "file descriptors came that nobody waits for", m.fds.size());
  }
  switch (static_cast<kind>(m.kind)) {
    case kind::status:
      if (status s = decode_status_request(m.body); !s) return fail(s.error());
      return encode(does_.now());
    case kind::suspend:
      return after(decode_suspend(m.body),
                   [&](const suspend_request &r) { return does_.suspend(r, stop_); });
    case kind::resume:
      return after(decode_resume(m.body),
                   [&](const std::string &tag) { return does_.resume(tag); });
    case kind::snapshot:
      return after(decode_snapshot(m.body), [&](const snapshot_request &r) {
        return does_.snapshot(r, stop_, [this](const snapshot_progress &p) { return tell(p); });
      });
    case kind::give:
      return after(decode_give(m.body),
                   [&](const give_request &r) { return does_.give(r, stop_); });
    case kind::migrate:
      return after(decode_migrate(m.body), [&](const migrate_request &r) { return migrate(r); });
    case kind::settle:
      if (status s = decode_settle_request(m.body); !s) return fail(s.error());
      return encoded(does_.settle());
    case kind::abort:
      if (status s = decode_abort_request(m.body); !s) return fail(s.error());
      return encoded(does_.abort(stop_));
    case kind::progress:
    case kind::answer:
    case kind::refusal:
    case kind::migrating:
      break;
  }
  return refused(errc::corrupt, "this is no request (its kind)", m.kind);
}

// An asker that is gone does not want its snapshot any more. One that only does not listen gets it
// all the same, but holds nothing up.
bool asker::tell(const snapshot_progress &p) {
  return !is_gone() && say(kind::progress, encode(p), false);
}

// Now and then, or at once; where there is no room, not at all.
bool asker::say(kind k, const bytes &body, bool at_once) {
  const auto now = std::chrono::steady_clock::now();
  if ((!at_once && now - told_ < tell_every) || (events_of(with_.fd(), POLLOUT) & POLLOUT) == 0) {
    return true;
  }
  told_ = now;
  return with_.send(static_cast<std::uint16_t>(k), body, {}, how_.wait, {}).has_value();
}

// Like a snapshot, it is given up when the asker is gone. A migration may be silent for long, so
// somebody has an eye on that.
outcome<migrated> asker::migrate(const migrate_request &r) {
  std::stop_source give_up;
  const std::stop_callback going(stop_, [&] { give_up.request_stop(); });
  const std::jthread watching([&](const std::stop_token &over) {
    while (!over.stop_requested()) {
      pollfd p{with_.fd(), POLLRDHUP, 0};
      if (::poll(&p, 1, look_every) <= 0) continue;
      give_up.request_stop();
      return;
    }
  });
  auto last = migration::step::described;
  return does_.migrate(r, give_up.get_token(), [&](const migration::progress &p) {
    say(kind::migrating, encode(p), std::exchange(last, p.at) != p.at);
  });
}

bool asker::is_gone() const {
  return (events_of(with_.fd(), POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace stillmap::control
