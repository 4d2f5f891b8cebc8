#include "stillmap/checkpoint/migration/internal/wire.h"

#include <algorithm>

#include "stillmap/checkpoint/common/internal/wire_format.h"
#include "stillmap/vmm/internal/try.h"

namespace stillmap::migration {
namespace {

using checkpoint::wire_reader;
using checkpoint::wire_writer;

constexpr std::uint32_t magic = 0x674d6d53;  // "SmMg"
constexpr std::uint16_t version = 2;

tl::unexpected<error> malformed(const char *what) {
  return make_error(errc::corrupt, "migration::decode", what);
}

// The value, if the whole body has been read and every field was valid.
template <class T>
result<T> complete(const wire_reader &r, T value, const char *reason) {
  if (!r.done()) return malformed(reason);
  return value;
}

}  // namespace

void encode(const header &h, std::span<std::byte, header::bytes> into) {
  wire_writer w;
  w.u32(magic);
  w.number(version, 2);
  w.number(static_cast<std::uint16_t>(h.what), 2);
  w.u64(h.body);
  w.u64(h.number);
  w.bytes(h.digest.bytes);
  const auto bytes = w.take();
  std::copy(bytes.begin(), bytes.end(), into.begin());
}

result<header> decode_header(std::span<const std::byte, header::bytes> from) {
  wire_reader r(from);
  header h;
  const std::uint32_t first = r.u32();
  const std::uint64_t of = r.number(2), what = r.number(2);
  h.body = r.u64();
  h.number = r.u64();
  r.bytes(h.digest.bytes);
  if (first != magic) return malformed("not a message of the migration protocol");
  if (of != version) {
    return make_error(errc::not_supported, "migration::decode",
                      "the peer speaks another version of the protocol", of, version);
  }
  if (what < 1 || what > static_cast<std::uint16_t>(kind::refusal)) {
    return malformed("unknown kind of message");
  }
  h.what = static_cast<kind>(what);
  return h;
}

std::vector<std::byte> encode(const hello &h) {
  wire_writer w;
  w.bytes(h.task.bytes);
  w.u64(h.epoch);
  w.u64(h.page_bytes);
  w.u32(h.chunk_bytes);
  w.u32(h.channels);
  return w.take();
}

result<hello> decode_hello(std::span<const std::byte> from) {
  wire_reader r(from);
  hello h;
  r.bytes(h.task.bytes);
  h.epoch = r.u64();
  h.page_bytes = r.u64();
  h.chunk_bytes = r.u32();
  h.channels = r.u32();
  if (h.epoch == 0 || h.epoch == ~std::uint64_t{0} || h.page_bytes == 0 ||
      h.chunk_bytes < min_chunk_bytes || h.chunk_bytes > max_chunk_bytes ||
      h.chunk_bytes % image::block_bytes != 0 || h.page_bytes % h.chunk_bytes != 0 ||
      h.channels == 0 || h.channels > max_channels) {
    r.fail();
  }
  return complete(r, h, "malformed hello message");
}

std::vector<std::byte> encode(const layout_message &l) {
  wire_writer w;
  for (const std::uint32_t page : l.pages) w.u32(page);
  const std::vector<std::byte> layout = encode(l.layout), pages = w.take();
  wire_writer all;
  all.u32(l.pages.size());
  all.bytes(pages);
  all.bytes(layout);
  return all.take();
}

result<layout_message> decode_layout_message(std::span<const std::byte> from) {
  wire_reader r(from);
  layout_message out;
  const std::size_t n = r.count(4);
  out.pages.resize(n);
  for (std::uint32_t &page : out.pages) page = r.u32();
  if (!r.good()) return malformed("malformed list of pages");
  STILLMAP_ASSIGN_OR_RETURN(out.layout, checkpoint::decode_layout(from.subspan(4 + 4 * n)));
  std::vector<std::uint32_t> sorted = out.pages;
  std::sort(sorted.begin(), sorted.end());
  if (out.layout.pages.size() != n ||
      std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return malformed("the page numbers do not match the layout");
  }
  return out;
}

std::vector<std::byte> encode(const outcome_query &q) {
  wire_writer w;
  w.bytes(q.task.bytes);
  w.bytes(q.session.bytes);
  w.u64(q.epoch);
  return w.take();
}

result<outcome_query> decode_outcome_query(std::span<const std::byte> from) {
  wire_reader r(from);
  outcome_query q;
  r.bytes(q.task.bytes);
  r.bytes(q.session.bytes);
  q.epoch = r.u64();
  return complete(r, q, "malformed outcome query or commit");
}

std::vector<std::byte> encode(const session_id &s) {
  return {s.bytes.begin(), s.bytes.end()};
}

result<session_id> decode_session(std::span<const std::byte> from) {
  wire_reader r(from);
  session_id s;
  r.bytes(s.bytes);
  return complete(r, s, "malformed session id");
}

std::vector<std::byte> encode(const std::vector<std::uint64_t> &numbers) {
  wire_writer w;
  for (const std::uint64_t n : numbers) w.u64(n);
  return w.take();
}

result<std::vector<std::uint64_t>> decode_numbers(std::span<const std::byte> from) {
  wire_reader r(from);
  std::vector<std::uint64_t> out(from.size() / 8);
  for (std::uint64_t &n : out) n = r.u64();
  return complete(r, std::move(out), "malformed list of chunks");
}

std::vector<std::byte> encode(const std::vector<image::digest> &digests) {
  wire_writer w;
  for (const image::digest &d : digests) w.bytes(d.bytes);
  return w.take();
}

result<std::vector<image::digest>> decode_digests(std::span<const std::byte> from) {
  wire_reader r(from);
  std::vector<image::digest> out(from.size() / image::digest().bytes.size());
  for (image::digest &d : out) r.bytes(d.bytes);
  return complete(r, std::move(out), "malformed list of digests");
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
    return make_error(errc::corrupt, "migration::receive", "a message is larger than allowed",
                      h.body, limit, error_unit::bytes);
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
                        std::chrono::milliseconds timeout, const char *operation) {
  auto m = receive(from, std::max<std::uint64_t>(limit, checkpoint::largest_peer_error), timeout);
  if (!m) return m;
  if (m->head.what == kind::refusal) {
    return tl::unexpected(checkpoint::decode_peer_error(m->body, operation));
  }
  if (m->head.what != want || m->body.size() > limit) {
    return make_error(errc::corrupt, operation, "unexpected kind of message",
                      static_cast<std::uint64_t>(m->head.what), static_cast<std::uint64_t>(want));
  }
  return m;
}

}  // namespace stillmap::migration
