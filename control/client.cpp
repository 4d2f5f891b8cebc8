#include "stillmap/control/client.h"

#include "stillmap/control/messages.h"

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
  std::function<bool(const snapshot_progress &)> on_progress = {};
};

// What the other side answered, as bytes.
outcome<bytes> ask(const std::string &where, const client_options &how, const question &q) {
  if (q.body.size() > largest_request) {
    return fail(error{make_error_code(condition::invalid_argument), op,
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
    switch (static_cast<kind>(came->kind)) {
      case kind::answer:
        return std::move(came->body);
      case kind::refusal:
        return tl::unexpected<failure>(decode_refusal(came->body));
      case kind::progress: {
        const auto p = decode_progress(came->body);
        if (!p) return fail(p.error());
        if (q.on_progress && !q.on_progress(*p)) {
          return fail(
              error{std::make_error_code(std::errc::operation_canceled), op, "it was given up"});
        }
        continue;
      }
      default:
        return fail(error{make_error_code(condition::corrupt), op, "another message was expected",
                          came->kind});
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
  return understood(
      ask(where_, how_, {kind::snapshot, encode(r), as_long_as_it_takes, on_progress}),
      decode_written);
}

outcome<handoff::given_memory> client::give(const give_request &r) const {
  return understood(ask(where_, how_, {kind::give, encode(r)}), decode_given);
}

}  // namespace stillmap::control
