#include "stillmap/checkpoint/control/client.h"

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/control/internal/server_reply.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::control {
namespace {

constexpr std::chrono::milliseconds no_timeout = std::chrono::hours(24 * 365);

struct encoded_request {
  kind what;
  bytes body;
  std::chrono::milliseconds response_timeout = no_timeout;
  // The kind of progress message that may precede the response, and what to do with it.
  kind progress = kind::snapshot_progress;
  std::function<status(bytes_view)> on_progress = {};
};

template <class Progress>
std::function<status(bytes_view)> decoding(
    const std::function<void(const Progress &)> &on_progress) {
  return [&on_progress](bytes_view body) -> status {
    STILLMAP_ASSIGN_OR_RETURN(const Progress p, decode<Progress>(body));
    if (on_progress) on_progress(p);
    return {};
  };
}

// The body of the response.
result<bytes> exchange(const std::string &address, const client_options &options,
                       const encoded_request &q) {
  if (q.body.size() > max_request_bytes) {
    return make_error(errc::invalid_argument, "the request is too large", q.body.size(),
                      max_request_bytes, error_unit::bytes);
  }
  STILLMAP_ASSIGN_OR_RETURN(auto server, checkpoint::socket_channel::connect(
                                             address, options.connect_timeout, options.cancel));
  STILLMAP_RETURN_IF_ERROR(check_server_user(server));
  const auto begun = std::chrono::steady_clock::now();
  const status sent = server.send(static_cast<std::uint16_t>(q.what), q.body, {}, options.timeout,
                                  options.cancel, begun + options.timeout);
  // A server that refuses a connection does not read the request, so sending it may fail: its
  // refusal can be received all the same.
  for (;;) {
    auto m =
        server.receive(max_response_bytes, sent ? q.response_timeout : std::chrono::milliseconds(0),
                       options.cancel, begun + options.timeout + q.response_timeout);
    if (!m) return tl::unexpected(sent ? m.error() : sent.error());
    const bool is_progress = q.on_progress && static_cast<kind>(m->kind) == q.progress;
    if (!is_progress) return response_in(std::move(*m));
    STILLMAP_RETURN_IF_ERROR(q.on_progress(m->body));
  }
}

// Sends a request and decodes its response.
template <class T>
result<T> call(const std::string &address, const client_options &options,
               const encoded_request &q) {
  auto out = exchange(address, options, q).and_then(&decode<T>);
  if (!out) return tl::unexpected(out.error().about(address));
  return out;
}

}  // namespace

result<process_status> client::status() const {
  return with_host_memory("control::client::status", [&]() -> result<process_status> {
    return call<process_status>(address_, options_,
                                {kind::status, encode(empty_request{}), options_.timeout});
  });
}

result<checkpoint::suspended_tag> client::suspend(const suspend_request &r) const {
  return with_host_memory("control::client::suspend", [&]() -> result<checkpoint::suspended_tag> {
    return call<checkpoint::suspended_tag>(address_, options_, {kind::suspend, encode(r)});
  });
}

result<checkpoint::suspended_tag> client::resume(const std::string &tag) const {
  return with_host_memory("control::client::resume", [&]() -> result<checkpoint::suspended_tag> {
    return call<checkpoint::suspended_tag>(address_, options_,
                                           {kind::resume, encode(resume_request{tag, false})});
  });
}

result<checkpoint::suspended_tag> client::resume_all() const {
  return with_host_memory(
      "control::client::resume_all", [&]() -> result<checkpoint::suspended_tag> {
        return call<checkpoint::suspended_tag>(address_, options_,
                                               {kind::resume, encode(resume_request{{}, true})});
      });
}

result<image::written> client::snapshot(
    const snapshot_request &r,
    const std::function<void(const snapshot_progress &)> &on_progress) const {
  return with_host_memory("control::client::snapshot", [&]() -> result<image::written> {
    return call<image::written>(
        address_, options_,
        {kind::snapshot, encode(r), no_timeout, kind::snapshot_progress, decoding(on_progress)});
  });
}

result<snapshot::restored_contents> client::restore(
    const restore_request &r,
    const std::function<void(const snapshot_progress &)> &on_progress) const {
  return with_host_memory("control::client::restore", [&]() -> result<snapshot::restored_contents> {
    return call<snapshot::restored_contents>(
        address_, options_,
        {kind::restore, encode(r), no_timeout, kind::snapshot_progress, decoding(on_progress)});
  });
}

result<handoff::sent_memory> client::handoff(const handoff_request &r) const {
  return with_host_memory("control::client::handoff", [&]() -> result<handoff::sent_memory> {
    return call<handoff::sent_memory>(address_, options_, {kind::handoff, encode(r)});
  });
}

result<migration::sent_memory> client::migrate(
    const migrate_request &r,
    const std::function<void(const migration::progress &)> &on_progress) const {
  return with_host_memory("control::client::migrate", [&]() -> result<migration::sent_memory> {
    return call<migration::sent_memory>(
        address_, options_,
        {kind::migrate, encode(r), no_timeout, kind::migration_progress, decoding(on_progress)});
  });
}

result<migration::sent_memory> client::resolve() const {
  return with_host_memory("control::client::resolve", [&]() -> result<migration::sent_memory> {
    return call<migration::sent_memory>(address_, options_,
                                        {kind::resolve, encode(empty_request{})});
  });
}

result<request_kind> client::abort() const {
  return with_host_memory("control::client::abort", [&]() -> result<request_kind> {
    return call<request_kind>(address_, options_, {kind::abort, encode(empty_request{})});
  });
}

}  // namespace stillmap::control
