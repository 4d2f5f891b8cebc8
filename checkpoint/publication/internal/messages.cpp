#include "stillmap/checkpoint/publication/internal/messages.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {
namespace {

using checkpoint::field_of;
using checkpoint::socket_channel;
using checkpoint::socket_message;
using checkpoint::wire_reader;
using checkpoint::wire_writer;

template <class Wire>
void fields(Wire &w, field_of<Wire, attach_request> &m) {
  w(m.name, m.generation, m.id.bytes, m.device, m.page_bytes, m.wait, m.claim);
}
template <class Wire>
void fields(Wire &w, field_of<Wire, withdraw_request> &m) {
  w(m.name);
}
template <class Wire>
void fields(Wire &w, field_of<Wire, generation_reply> &m) {
  w(m.generation);
  w.check(m.generation != 0);
}
template <class Wire>
void fields(Wire &w, field_of<Wire, listing> &m) {
  w.elements(m, w.count(m, 88), [&](auto &p) {
    w(p.name, p.generation, p.newest, p.device, p.id.bytes, p.pages, p.bytes, p.publisher);
    w.elements(p.readers, w.count(p.readers, 4), [&](auto &pid) { w(pid); });
  });
}

template <class Message>
constexpr bool is_request =
    std::is_same_v<Message, attach_request> || std::is_same_v<Message, withdraw_request>;

template <class Message>
std::vector<std::byte> encode_fields(const Message &m) {
  wire_writer w;
  if constexpr (is_request<Message>) w(protocol_version);
  fields(w, m);
  return w.take();
}

tl::unexpected<error> malformed() {
  return make_error(errc::corrupt, "not a valid message of a holder's protocol");
}

status check_version(wire_reader &r) {
  const auto version = r.read<std::uint32_t>();
  if (!r.good()) return malformed();
  if (version == protocol_version) return {};
  return make_error(errc::not_supported, "the client uses another protocol version", version,
                    protocol_version);
}

}  // namespace

std::chrono::milliseconds bounded(std::chrono::milliseconds wait) {
  return std::clamp(wait, std::chrono::milliseconds(0), max_wait);
}

std::vector<std::byte> encode(const attach_request &m) {
  return encode_fields(m);
}
std::vector<std::byte> encode(const withdraw_request &m) {
  return encode_fields(m);
}
std::vector<std::byte> encode(const generation_reply &m) {
  return encode_fields(m);
}
std::vector<std::byte> encode(const listing &m) {
  return encode_fields(m);
}

std::vector<std::byte> encode_version() {
  wire_writer w;
  w(protocol_version);
  return w.take();
}

std::vector<std::byte> encode_attached(std::uint64_t generation,
                                       std::span<const std::byte> manifest) {
  wire_writer w;
  w(generation);
  w.bytes(manifest);
  return w.take();
}

std::vector<std::byte> encode_publish(const manifest &m) {
  wire_writer w;
  w(protocol_version);
  w.bytes(encode(m));
  return w.take();
}

template <class Message>
result<Message> decode(std::span<const std::byte> from) {
  wire_reader r(from);
  if constexpr (is_request<Message>) STILLMAP_RETURN_IF_ERROR(check_version(r));
  Message m;
  fields(r, m);
  if (!r.done()) return malformed();
  return m;
}
template result<attach_request> decode(std::span<const std::byte> from);
template result<withdraw_request> decode(std::span<const std::byte> from);
template result<generation_reply> decode(std::span<const std::byte> from);
template result<listing> decode(std::span<const std::byte> from);

status decode_version(std::span<const std::byte> from) {
  wire_reader r(from);
  STILLMAP_RETURN_IF_ERROR(check_version(r));
  return r.done() ? status() : malformed();
}

result<std::span<const std::byte>> manifest_of_publish(std::span<const std::byte> from) {
  wire_reader r(from);
  STILLMAP_RETURN_IF_ERROR(check_version(r));
  return from.subspan(sizeof protocol_version);
}

result<attached_reply> decode_attached(std::span<const std::byte> from) {
  wire_reader r(from);
  const auto generation = r.read<std::uint64_t>();
  if (!r.good() || generation == 0) return malformed();
  STILLMAP_ASSIGN_OR_RETURN(publication::manifest m,
                            decode_manifest(from.subspan(sizeof generation)));
  return attached_reply{generation, std::move(m)};
}

status message_stream::send(kind k, std::span<const std::byte> body, std::span<const int> fds) {
  status sent = with_.send(static_cast<std::uint16_t>(k), body, fds, timeout_, stop_,
                           std::chrono::steady_clock::now() + timeout_);
  const auto failed = [&](std::errc code) { return !sent && sent.error().code == code; };
  if (failed(std::errc::broken_pipe) || failed(std::errc::connection_reset)) {
    // It may have said why before it closed the connection.
    auto last = next(0, std::chrono::milliseconds(0));
    if (!last && last.error().reason == std::string_view(checkpoint::peer_refused)) {
      return tl::unexpected(std::move(last).error());
    }
  }
  return sent;
}

status message_stream::send_pages(std::span<const int> fds) {
  for (std::size_t i = 0; i < fds.size(); i += socket_channel::max_fds) {
    const std::size_t n = std::min(socket_channel::max_fds, fds.size() - i);
    STILLMAP_RETURN_IF_ERROR(send(kind::pages, {}, fds.subspan(i, n)));
  }
  return {};
}

result<socket_message> message_stream::next(std::size_t limit, std::chrono::milliseconds timeout) {
  timeout = bounded(timeout);
  STILLMAP_ASSIGN_OR_RETURN(socket_message m,
                            with_.receive(std::max(limit, checkpoint::largest_peer_error), timeout,
                                          stop_, std::chrono::steady_clock::now() + timeout));
  if (m.kind != static_cast<std::uint16_t>(kind::refusal)) return m;
  return tl::unexpected(checkpoint::decode_peer_error(m.body));
}

result<socket_message> message_stream::receive(kind k, std::size_t limit, std::size_t min_fds,
                                               std::size_t max_fds) {
  STILLMAP_ASSIGN_OR_RETURN(socket_message m, next(limit, timeout_));
  if (m.kind != static_cast<std::uint16_t>(k)) {
    return make_error(errc::corrupt, "another message was expected (its kind)", m.kind,
                      static_cast<std::uint64_t>(k));
  }
  if (m.body.size() > limit) {
    return make_error(errc::corrupt, "the message exceeds the size limit", m.body.size(), limit,
                      error_unit::bytes);
  }
  if (m.fds.size() < min_fds || m.fds.size() > max_fds) {
    return make_error(errc::corrupt, "another number of file descriptors was expected",
                      m.fds.size(), max_fds, error_unit::items);
  }
  return m;
}

result<socket_message> message_stream::receive(kind k, kind other, std::size_t limit,
                                               std::chrono::milliseconds timeout) {
  STILLMAP_ASSIGN_OR_RETURN(socket_message m, next(limit, timeout));
  const bool expected =
      m.kind == static_cast<std::uint16_t>(k) || m.kind == static_cast<std::uint16_t>(other);
  if (expected && m.fds.empty()) return m;
  return make_error(errc::corrupt, "another message was expected (its kind)", m.kind,
                    static_cast<std::uint64_t>(k));
}

status message_stream::receive_pages(std::size_t pages,
                                     const std::function<status(std::vector<owned_fd> &)> &take) {
  for (std::size_t arrived = 0; arrived < pages;) {
    // Full batches: the time for each message bounds that for all.
    const std::size_t n = std::min(socket_channel::max_fds, pages - arrived);
    STILLMAP_ASSIGN_OR_RETURN(socket_message m, receive(kind::pages, 0, n, n));
    arrived += n;
    STILLMAP_RETURN_IF_ERROR(take(m.fds));
  }
  return {};
}

void message_stream::refuse(const error &e) noexcept {
  (void)with_host_memory([&] { return send(kind::refusal, checkpoint::encode(e)); });
}

}  // namespace stillmap::publication
