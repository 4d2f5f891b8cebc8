#include "stillmap/checkpoint/common/internal/layout_wire.h"

#include <algorithm>

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::checkpoint {
namespace {

void put(wire_writer &w, const memory_location &l) {
  w.u32(static_cast<std::uint32_t>(l.kind));
  w.u32(static_cast<std::uint32_t>(l.id));
}

memory_location get_location(wire_reader &r) {
  const auto kind = r.one_of(location_kind::host_numa_current);
  const auto id = static_cast<std::int32_t>(r.u32());
  // A layout names no other device than its own.
  if (kind == location_kind::device && id != memory_layout::own_device) r.fail();
  return {kind, id};
}

}  // namespace

std::vector<std::byte> encode(const memory_layout &l) {
  wire_writer w;
  w.u32(l.blocks.size());
  w.u32(l.pages.size());
  w.u32(l.access.size());
  w.u32(l.places.size());
  for (const memory_layout::block &b : l.blocks) {
    w.u64(b.range.begin.value());
    w.u64(b.range.bytes);
    w.text(b.tag);
  }
  for (const memory_layout::page &p : l.pages) {
    w.u64(p.bytes);
    put(w, p.properties.location);
    w.u32(static_cast<std::uint32_t>(p.properties.exportable));
    w.u32(p.properties.rdma ? 1 : 0);
  }
  for (const auto &list : l.access) {
    w.u32(list.size());
    for (const access_grant &g : list) {
      put(w, g.location);
      w.u32(static_cast<std::uint32_t>(g.mode));
    }
  }
  for (const memory_layout::place &p : l.places) {
    w.u64(p.at.value());
    w.u32(p.page);
    w.u32(p.access);
  }
  return w.take();
}

result<memory_layout> decode_layout(std::span<const std::byte> from) {
  wire_reader r(from);
  memory_layout l;
  const std::size_t blocks = r.count(20), pages = r.count(24), lists = r.count(4),
                    places = r.count(16);
  for (std::size_t i = 0; i < blocks && r.good(); ++i) {
    memory_layout::block b;
    b.range.begin = device_address(r.u64());
    b.range.bytes = r.u64();
    b.tag = r.text();
    l.blocks.push_back(std::move(b));
  }
  for (std::size_t i = 0; i < pages && r.good(); ++i) {
    memory_layout::page p;
    p.bytes = r.u64();
    p.properties.location = get_location(r);
    p.properties.exportable = r.one_of(handle_type::fabric);
    p.properties.rdma = r.u32() != 0;
    l.pages.push_back(p);
  }
  for (std::size_t i = 0; i < lists && r.good(); ++i) {
    std::vector<access_grant> list(r.count(12));
    for (access_grant &g : list) {
      g.location = get_location(r);
      g.mode = r.one_of(access_mode::read_write);
    }
    l.access.push_back(std::move(list));
  }
  for (std::size_t i = 0; i < places && r.good(); ++i) {
    memory_layout::place p;
    p.at = device_address(r.u64());
    p.page = r.u32();
    p.access = r.u32();
    l.places.push_back(p);
  }
  if (!r.done())
    return make_error(errc::corrupt, "checkpoint::decode_layout", "the bytes are no memory layout");
  return l;
}

std::vector<std::byte> encode(const error &e) {
  errc code = errc::not_supported;  // the driver's and the system's other errors
  for (int c = 1; c <= static_cast<int>(errc::operation_canceled); ++c) {
    if (e.is(static_cast<errc>(c))) code = static_cast<errc>(c);
  }
  std::string text = std::string(e.operation) + ": " + e.reason;
  text.resize(std::min(text.size(), largest_peer_error / 2));
  wire_writer w;
  w.u32(static_cast<std::uint32_t>(code));
  w.u32(static_cast<std::uint32_t>(e.unit));
  w.u64(e.value);
  w.text(text);
  return w.take();
}

error decode_peer_error(std::span<const std::byte> from, const char *operation) {
  wire_reader r(from);
  const errc code = r.one_of(errc::operation_canceled, errc::out_of_memory);
  const error_unit unit = r.one_of(error_unit::items);
  const std::uint64_t value = r.u64();
  std::string text = r.text();
  if (!r.done()) return {make_error_code(errc::corrupt), operation, peer_refused};
  // It may end up in a terminal.
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c > '~'; }, '?');
  const error e{make_error_code(code), operation, peer_refused, value, 0, unit};
  return e.with({.cause = std::move(text)});
}

}  // namespace stillmap::checkpoint
