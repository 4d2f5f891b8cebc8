#include "tests/checkpoint/control/fuzz_entry.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/control/server.h"
#include "tests/support/fuzz_device.h"
#include "tests/support/unique_name.h"

namespace stillmap::control {
namespace {

constexpr std::chrono::milliseconds reply_timeout{10'000};

bool is_same(const bytes &a, bytes_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// An accepted message is written as it was read; a refused one has a reason.
template <class T>
std::string exact(bytes_view from) {
  const auto m = decode<T>(from);
  if (!m) return m.error().reason[0] != '\0' ? "" : "a message was refused without a reason";
  return is_same(encode<T>(*m), from) ? "" : "a message is not what was read";
}

// The same where a number is rounded, or a text changed: at the first time only.
template <class T>
std::string settles(bytes_view from) {
  const auto m = decode<T>(from);
  if (!m) return m.error().reason[0] != '\0' ? "" : "a message was refused without a reason";
  const auto again = decode<T>(encode<T>(*m));
  return again ? "" : "a message does not survive being written";
}

using check = std::string (*)(bytes_view);
constexpr check requests[] = {
    exact<empty_request>,   exact<suspend_request>, exact<resume_request>, exact<snapshot_request>,
    exact<handoff_request>, exact<migrate_request>, exact<restore_request>};
constexpr check responses[] = {settles<process_status>,
                               exact<checkpoint::suspended_tag>,
                               exact<image::written>,
                               exact<handoff::sent_memory>,
                               exact<snapshot_progress>,
                               settles<migration::progress>,
                               settles<migration::sent_memory>,
                               exact<request_kind>,
                               exact<snapshot::restored_contents>};

std::string run_one_of(std::span<const check> all, bytes_view from) {
  if (from.empty()) return "";
  return all[std::to_integer<std::size_t>(from[0]) % all.size()](from.subspan(1));
}

std::string fuzz_refusal(bytes_view from) {
  const error e = decode_refusal(from);
  if (!e.code || e.reason[0] == '\0') return "a refusal is no error";
  const std::string text = e.message();
  const bool controls = std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 127; });
  return controls ? "a refusal has control characters" : "";
}

std::string fuzz_connection(const device &d, bytes_view from) {
  static const std::string where = stillmap::testing::unique_name("@stillmap-control-fuzz");
  bool stopped = false;
  server_options options;
  options.task.quiesce = [&](auto, auto) {
    stopped = true;
    return status{};
  };
  auto at = server::create(d, where, options);
  if (!at) return "no server: " + at.error().message();
  const auto to = checkpoint::socket_channel::connect(where, reply_timeout);
  if (!to) return "no connection: " + to.error().message();
  // It may end the connection before it has read everything.
  [[maybe_unused]] const ssize_t n =
      ::send(to->fd(), from.data(), from.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(to->fd(), SHUT_WR);
  auto reply = checkpoint::socket_channel::adopt(owned_fd(::dup(to->fd())));
  const auto came = reply ? reply->receive(max_response_bytes, reply_timeout, {})
                          : result<checkpoint::socket_message>(tl::unexpected(reply.error()));
  if (stopped) return "the task was stopped";
  if (!came) return came.error().is(errc::busy) ? "the server does not reply" : "";
  if (came->kind == static_cast<std::uint16_t>(kind::response)) {
    return decode<process_status>(came->body) ? "" : "a response to what is no status";
  }
  return came->kind == static_cast<std::uint16_t>(kind::refusal) && decode_refusal(came->body).code
             ? ""
             : "the server's reply makes no sense";
}

migration::sent_memory an_outcome_in_doubt() {
  migration::sent_memory m;
  m.owner = migration::owner::in_doubt;
  m.failure = make_error(errc::busy, "why", 1, 2).value();
  m.data_fallback = make_error(errc::not_supported, "why not").value();
  return m;
}

}  // namespace

std::string fuzz_control(const device &d, const std::uint8_t *data, std::size_t size) {
  if (size == 0) return "";
  const bytes_view rest(reinterpret_cast<const std::byte *>(data + 1), size - 1);
  switch (static_cast<fuzz_mode>(data[0] % static_cast<unsigned>(fuzz_mode::count))) {
    case fuzz_mode::requests:
      return run_one_of(requests, rest);
    case fuzz_mode::responses:
      return run_one_of(responses, rest);
    case fuzz_mode::refusal:
      return fuzz_refusal(rest);
    default:
      return fuzz_connection(d, rest);
  }
}

std::vector<stillmap::testing::fuzz_input> fuzz_corpus() {
  std::vector<stillmap::testing::fuzz_input> inputs;
  const auto add = [&](fuzz_mode mode, bytes_view body) {
    inputs.push_back(stillmap::testing::fuzz_input_of(static_cast<std::uint8_t>(mode), body));
  };
  const auto add_one_of = [&](fuzz_mode mode, std::uint8_t which, const bytes &body) {
    bytes all(1, static_cast<std::byte>(which));
    all.insert(all.end(), body.begin(), body.end());
    add(mode, all);
  };
  migrate_request moves;
  moves.tags = {"weights"};
  moves.to = "host:1";
  moves.certificate = moves.key = "/k";
  moves.fingerprints = {"00", "ff"};
  const std::pair<kind, bytes> all_requests[] = {
      {kind::status, encode(empty_request{})},
      {kind::suspend, encode(suspend_request{"weights", checkpoint::backing_store::file, "/tmp"})},
      {kind::resume, encode(resume_request{"weights"})},
      {kind::snapshot, encode(snapshot_request{{"a", "b"}, "/x", "/y", image::codec::zstd})},
      {kind::handoff, encode(handoff_request{{"a"}, "@x"})},
      {kind::migrate, encode(moves)},
      {kind::abort, encode(empty_request{})},
      {kind::resolve, encode(empty_request{})},
      {kind::restore, encode(restore_request{{"a", "b"}, "/x", "/k"})}};
  std::uint8_t which = 0;
  for (const auto &[what, body] : all_requests) {
    if (which < std::size(requests)) add_one_of(fuzz_mode::requests, which++, body);
    // As a frame: magic, version, kind, bytes, descriptors.
    bytes framed;
    const auto put = [&](std::uint64_t n, int width) {
      for (int i = 0; i < width; ++i) framed.push_back(static_cast<std::byte>(n >> (8 * i)));
    };
    put(0x4f484d53, 4);
    put(checkpoint::socket_channel::version, 2);
    put(static_cast<std::uint64_t>(what), 2);
    put(body.size(), 4);
    put(0, 4);
    framed.insert(framed.end(), body.begin(), body.end());
    add(fuzz_mode::connection, framed);
  }
  process_status s;
  s.device = "NVIDIA H200";
  s.tags = {{"", 1, 2, 3, 4, {}}, {"weights", 4, 5, 6, 7, checkpoint::backing_store::file}};
  s.job = {request_kind::migrate, std::chrono::milliseconds(12), 8, 9, migration::step::copied};
  s.memory = memory_figures{1, 2, 3, 4, "gpu0"};
  migration::progress p;
  p.bytes_per_second = 7;
  const bytes all_responses[] = {encode(s),
                                 encode(checkpoint::suspended_tag{}),
                                 encode(image::written{}),
                                 encode(handoff::sent_memory{}),
                                 encode(snapshot_progress{true, 1, 2, 3}),
                                 encode(p),
                                 encode(an_outcome_in_doubt()),
                                 encode(request_kind::migrate),
                                 encode(snapshot::restored_contents{{}, 1, 2})};
  static_assert(std::size(all_responses) == std::size(responses));
  for (which = 0; which < std::size(all_responses); ++which) {
    add_one_of(fuzz_mode::responses, which, all_responses[which]);
  }
  add(fuzz_mode::refusal, encode(make_error(errc::busy, "why", 1, 2).value()));
  add(fuzz_mode::refusal, encode(make_system_error(2, "why").value()));
  return inputs;
}

}  // namespace stillmap::control

namespace {

std::string fuzz_control_alone(const std::uint8_t *data, std::size_t size) {
  return stillmap::control::fuzz_control(stillmap::testing::fuzz_device(), data, size);
}

}  // namespace

STILLMAP_FUZZ_ENTRY("control", fuzz_control_alone, stillmap::control::fuzz_corpus)
