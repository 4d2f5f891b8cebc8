#include "stillmap/checkpoint/migration/internal/wire.h"

#include <algorithm>

#include "stillmap/checkpoint/base/error_wire.h"
#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

using checkpoint::wire_reader;
using checkpoint::wire_writer;

constexpr std::uint32_t magic = 0x674d6d53;  // "SmMg"
constexpr std::uint16_t version = 4;

tl::unexpected<error> malformed(const char *what) {
  return make_error(errc::corrupt, what);
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, hello> &h) {
  w(h.task.bytes, h.epoch, h.page_bytes, h.chunk_bytes, h.channels, h.digests.bytes);
  w.check(h.epoch != 0 && h.epoch != ~std::uint64_t{0} && h.page_bytes != 0 &&
          h.chunk_bytes >= min_chunk_bytes && h.chunk_bytes <= max_chunk_bytes &&
          h.chunk_bytes % image::block_bytes == 0 && h.page_bytes % h.chunk_bytes == 0 &&
          h.channels != 0 && h.channels <= max_channels);
}

// Printable, and without spaces.
bool is_word(const std::string &text, std::size_t max_bytes) {
  return text.size() <= max_bytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, welcome_message> &m) {
  w(m.session.bytes, m.data.transport, m.data.address);
  w.check(can_be_announced(m.data) || (m.data.transport.empty() && m.data.address.empty()));
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, outcome_query> &q) {
  w(q.task.bytes, q.session.bytes, q.epoch);
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, group_query> &q) {
  w(q.group.bytes, checkpoint::up_to(q.to, group_state::aborted),
    checkpoint::up_to(q.seen, group_state::aborted), q.wait_ms);
  w.check(!q.group.is_zero() && q.wait_ms <= max_group_wait_ms);
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, session_id> &s) {
  w(s.bytes);
}

// Lists fill their message.
template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, std::vector<std::uint64_t>> &numbers) {
  for (auto &n : numbers) w(n);
}

template <class Wire>
void fields(Wire &w, checkpoint::field_of<Wire, std::vector<image::digest>> &digests) {
  for (auto &d : digests) w(d.bytes);
}

template <class T>
std::vector<std::byte> encode_fields(const T &message) {
  wire_writer w;
  fields(w, message);
  return w.take();
}

// The message, if the whole body has been read and every field was valid.
template <class T>
result<T> decode_fields(std::span<const std::byte> from, const char *reason, T message = {}) {
  wire_reader r(from);
  fields(r, message);
  if (!r.done()) return malformed(reason);
  return message;
}

}  // namespace

void encode(const header &h, std::span<std::byte, header::bytes> into) {
  wire_writer w;
  w(magic, version, static_cast<std::uint16_t>(h.what), h.body, h.number, h.digest.bytes);
  const auto bytes = w.take();
  std::copy(bytes.begin(), bytes.end(), into.begin());
}

result<header> decode_header(std::span<const std::byte, header::bytes> from) {
  wire_reader r(from);
  header h;
  std::uint32_t first = 0;
  std::uint16_t of = 0, what = 0;
  r(first, of, what, h.body, h.number, h.digest.bytes);
  if (first != magic) return malformed("not a message of the migration protocol");
  if (of != version) {
    return make_error(errc::not_supported, "the peer speaks another version of the protocol", of,
                      version);
  }
  if (what < 1 || what > static_cast<std::uint16_t>(kind::group_result)) {
    return malformed("unknown kind of message");
  }
  h.what = static_cast<kind>(what);
  return h;
}

bool can_be_announced(const data_endpoint &e) {
  return !e.transport.empty() && !e.address.empty() && is_word(e.transport, max_transport_name) &&
         is_word(e.address, max_data_address);
}

std::vector<std::byte> encode(const hello &h) {
  return encode_fields(h);
}
std::vector<std::byte> encode(const welcome_message &w) {
  return encode_fields(w);
}
std::vector<std::byte> encode(const outcome_query &q) {
  return encode_fields(q);
}
std::vector<std::byte> encode(const group_query &q) {
  return encode_fields(q);
}
std::vector<std::byte> encode(const session_id &s) {
  return encode_fields(s);
}
std::vector<std::byte> encode(const std::vector<std::uint64_t> &numbers) {
  return encode_fields(numbers);
}
std::vector<std::byte> encode(const std::vector<image::digest> &digests) {
  return encode_fields(digests);
}

result<hello> decode_hello(std::span<const std::byte> from) {
  return decode_fields<hello>(from, "malformed hello message");
}
result<welcome_message> decode_welcome(std::span<const std::byte> from) {
  return decode_fields<welcome_message>(from, "malformed welcome message");
}
result<outcome_query> decode_outcome_query(std::span<const std::byte> from) {
  return decode_fields<outcome_query>(from, "malformed outcome query or commit");
}
result<group_query> decode_group_query(std::span<const std::byte> from) {
  return decode_fields<group_query>(from, "malformed query of a group");
}
result<session_id> decode_session(std::span<const std::byte> from) {
  return decode_fields<session_id>(from, "malformed session id");
}
result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> from) {
  return decode_fields(from, "malformed list of chunks",
                       std::vector<std::uint64_t>(from.size() / sizeof(std::uint64_t)));
}
result<std::vector<image::digest>> decode_digests(std::span<const std::byte> from) {
  return decode_fields(from, "malformed list of digests",
                       std::vector<image::digest>(from.size() / sizeof(image::digest)));
}

std::vector<std::byte> encode(const layout_message &l) {
  wire_writer w;
  w.elements(l.pages, w.count(l.pages, 4), [&](std::uint32_t page) { w(page); });
  w.bytes(encode(l.layout));
  return w.take();
}

result<layout_message> decode_layout_message(std::span<const std::byte> from) {
  wire_reader r(from);
  layout_message out;
  r.elements(out.pages, r.count(out.pages, 4), [&](std::uint32_t &page) { r(page); });
  if (!r.good()) return malformed("malformed list of pages");
  const std::size_t n = out.pages.size();
  STILLMAP_ASSIGN_OR_RETURN(out.layout, checkpoint::decode_layout(from.subspan(4 + 4 * n)));
  std::vector<std::uint32_t> sorted = out.pages;
  std::sort(sorted.begin(), sorted.end());
  if (out.layout.pages.size() != n ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return malformed("the page numbers do not match the layout");
  }
  return out;
}

status send(channel &to, kind what, std::span<const std::byte> body,
            std::chrono::milliseconds timeout, std::uint64_t number) {
  std::vector<std::byte> all(header::bytes + body.size());
  encode(header{what, body.size(), number, {}}, std::span(all).first<header::bytes>());
  std::copy(body.begin(), body.end(), all.begin() + header::bytes);
  return to.send(all, timeout);
}

result<message> receive(channel &from, std::uint64_t limit, std::chrono::milliseconds timeout) {
  std::byte head[header::bytes];
  STILLMAP_RETURN_IF_ERROR(from.receive(head, timeout));
  STILLMAP_ASSIGN_OR_RETURN(const header h, decode_header(head));
  if (h.body > limit) {
    return make_error(errc::corrupt, "a message is larger than allowed", h.body, limit,
                      error_unit::bytes);
  }
  // Memory grows as bytes arrive: a header alone does not allocate what it announces.
  message m{h, {}};
  constexpr std::size_t piece = std::size_t{1} << 20;
  while (m.body.size() < h.body) {
    const std::size_t had = m.body.size();
    m.body.resize(had + std::min<std::size_t>(piece, h.body - had));
    STILLMAP_RETURN_IF_ERROR(from.receive(std::span(m.body).subspan(had), timeout));
  }
  return m;
}

result<message> receive(channel &from, kind want, std::uint64_t limit,
                        std::chrono::milliseconds timeout) {
  auto m = receive(from, std::max<std::uint64_t>(limit, checkpoint::largest_peer_error), timeout);
  if (!m) return m;
  if (m->head.what == kind::refusal) {
    return tl::unexpected(checkpoint::decode_peer_error(m->body));
  }
  if (m->head.what != want || m->body.size() > limit) {
    return make_error(errc::corrupt, "unexpected kind of message",
                      static_cast<std::uint64_t>(m->head.what), static_cast<std::uint64_t>(want));
  }
  return m;
}

}  // namespace stillmap::migration
