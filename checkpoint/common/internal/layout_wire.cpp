#include "stillmap/checkpoint/common/internal/layout_wire.h"

#include <algorithm>

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::checkpoint {
namespace {

template <class Wire>
void fields(Wire &w, field_of<Wire, memory_location> &l) {
  w(up_to(l.kind, location_kind::host_numa_current), l.id);
  // A layout names no other device than its own.
  w.check(l.kind != location_kind::device || l.id == memory_layout::own_device);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, memory_layout> &l) {
  const std::size_t blocks = w.count(l.blocks, 20), pages = w.count(l.pages, 24),
                    lists = w.count(l.access, 4), places = w.count(l.places, 16);
  // Each is used by a place. An empty list is six times as large in memory as it is here.
  w.check(pages <= places && lists <= places);
  w.elements(l.blocks, blocks, [&](auto &b) { w(b.range.begin, b.range.bytes, b.tag); });
  w.elements(l.pages, pages, [&](auto &p) {
    w(p.bytes);
    fields(w, p.properties.location);
    w(up_to(p.properties.exportable, handle_type::fabric), p.properties.rdma);
  });
  w.elements(l.access, lists, [&](auto &list) {
    w.elements(list, w.count(list, 12), [&](auto &grant) {
      fields(w, grant.location);
      w(up_to(grant.mode, access_mode::read_write));
    });
  });
  w.elements(l.places, places, [&](auto &p) { w(p.at, p.page, p.access); });
}

}  // namespace

std::vector<std::byte> encode(const memory_layout &l) {
  wire_writer w;
  fields(w, l);
  return w.take();
}

result<memory_layout> decode_layout(std::span<const std::byte> from) {
  wire_reader r(from);
  memory_layout l;
  fields(r, l);
  if (r.done()) return l;
  return make_error(errc::corrupt, "checkpoint::decode_layout", "the bytes are no memory layout");
}

std::vector<std::byte> encode(const error &e) {
  errc code = errc::not_supported;  // the driver's and the system's other errors
  for (int c = 1; c <= static_cast<int>(errc::operation_canceled); ++c) {
    if (e.is(static_cast<errc>(c))) code = static_cast<errc>(c);
  }
  wire_writer w(largest_peer_error / 2);
  w(static_cast<std::uint32_t>(code), static_cast<std::uint32_t>(e.unit), e.value,
    std::string(e.operation) + ": " + e.reason);
  return w.take();
}

error decode_peer_error(std::span<const std::byte> from, const char *operation) {
  wire_reader r(from);
  errc code = errc::corrupt;
  error_unit unit = error_unit::none;
  std::uint64_t value = 0;
  std::string text;
  r(up_to(code, errc::operation_canceled, errc::out_of_memory), up_to(unit, error_unit::items),
    value, text);
  if (!r.done()) return {make_error_code(errc::corrupt), operation, peer_refused};
  // It may end up in a terminal.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  const error e{make_error_code(code), operation, peer_refused, value, 0, unit};
  return e.with({.cause = std::move(text)});
}

}  // namespace stillmap::checkpoint
