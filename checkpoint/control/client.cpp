#include "stillmap/checkpoint/control/client.h"

#include "stillmap/checkpoint/control/internal/messages.h"

namespace stillmap::control {
namespace {

constexpr const char *op = "control::client";
using handoff::connection;
using handoff::patience;

constexpr patience as_long_as_it_takes = std::chrono::hours(24 * 365);

struct question {
  kind what;
  bytes body;
  patience answered_in = as_long_as_it_takes;
  // Of these messages on the way; false: give up.
  kind told = kind::progress;
  std::function<result<bool>(bytes_view)> on_progress = {};
};

template <class Progress>
std::function<result<bool>(bytes_view)> reading(
    result<Progress> (*decode)(bytes_view),
    const std::function<bool(const Progress &)> &on_progress) {
  return [decode, &on_progress](bytes_view body) -> result<bool> {
    const auto p = decode(body);
    if (!p) return tl::unexpected(p.error());
    return !on_progress || on_progress(*p);
  };
}

// What the other side answered, as bytes.
outcome<bytes> ask(const std::string &where, const client_options &how, const question &q) {
  if (q.body.size() > largest_request) {
    return fail(error{make_error_code(errc::invalid_argument), op,
                      "the request is larger than one may be", q.body.size(), largest_request});
  }
  auto with = connection::connect(where, how.reach, how.cancel);
  if (!with) return fail(with.error());
  const status asked =
      with->send(static_cast<std::uint16_t>(q.what), q.body, {}, how.wait, how.cancel);
  // Who turns us away does not read what we say first: then its refusal is there to be read.
  for (;;) {
    auto came = with->receive(largest_answer, asked ? q.answered_in : patience(0), how.cancel);
    if (!came) return fail(asked ? came.error() : asked.error());
    const auto k = static_cast<kind>(came->kind);
    if (k == kind::answer) return std::move(came->body);
    if (k == kind::refusal) return tl::unexpected<failure>(decode_refusal(came->body));
    if (k != q.told || !q.on_progress) {
      return fail(error{make_error_code(errc::corrupt), op, "another message was expected",
                        came->kind});
    }
    const auto wanted = q.on_progress(came->body);
    if (!wanted) return fail(wanted.error());
    if (!*wanted) {
      return fail(
          error{std::make_error_code(std::errc::operation_canceled), op, "it was given up"});
    }
  }
}

template <class T>
outcome<T> understood(const outcome<bytes> &said, result<T> (*decode)(bytes_view)) {
  if (!said) return tl::unexpected(said.error());
  auto read = decode(*said);
  if (!read) return fail(read.error());
  return std::move(*read);
}

}  // namespace

outcome<process_status> client::status() const {
  return understood(ask(where_, how_, {kind::status, encode_status_request(), how_.wait}),
                    decode_status);
}

outcome<checkpoint::suspended_tag> client::suspend(const suspend_request &r) const {
  return understood(ask(where_, how_, {kind::suspend, encode(r)}), decode_suspended);
}

outcome<checkpoint::suspended_tag> client::resume(const std::string &tag) const {
  return understood(ask(where_, how_, {kind::resume, encode_resume(tag)}), decode_suspended);
}

outcome<image::written> client::snapshot(
    const snapshot_request &r,
    const std::function<bool(const snapshot_progress &)> &on_progress) const {
  return understood(ask(where_, how_,
                        {kind::snapshot, encode(r), as_long_as_it_takes, kind::progress,
                         reading(decode_progress, on_progress)}),
                    decode_written);
}

outcome<handoff::given_memory> client::give(const give_request &r) const {
  return understood(ask(where_, how_, {kind::give, encode(r)}), decode_given);
}

outcome<migrated> client::migrate(
    const migrate_request &r,
    const std::function<bool(const migration::progress &)> &on_progress) const {
  return understood(ask(where_, how_,
                        {kind::migrate, encode(r), as_long_as_it_takes, kind::migrating,
                         reading(decode_migrating, on_progress)}),
                    decode_migrated);
}

outcome<migrated> client::settle() const {
  return understood(ask(where_, how_, {kind::settle, encode_settle_request()}), decode_migrated);
}

outcome<request_kind> client::abort() const {
  return understood(ask(where_, how_, {kind::abort, encode_abort_request()}), decode_aborted);
}

}  // namespace stillmap::control
