#include "stillmap/checkpoint/common/internal/layout_wire.h"

#include <algorithm>

#include "stillmap/checkpoint/common/internal/wire_format.h"

namespace stillmap::checkpoint {
namespace {

void put(field_writer &w, const memory_location &l) {
  w.u32(static_cast<std::uint32_t>(l.kind));
  w.u32(static_cast<std::uint32_t>(l.id));
}

memory_location get_location(field_reader &r) {
  const auto kind = r.one_of(location_kind::host_numa_current);
  const auto id = static_cast<std::int32_t>(r.u32());
  // The only device there is a name for is the one that all is about.
  if (kind == location_kind::device && id != memory_layout::own_device) r.spoil();
  return {kind, id};
}

}  // namespace

std::vector<std::byte> encode(const memory_layout &l) {
  field_writer w;
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
      put(w, g.who);
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
  field_reader r(from);
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
      g.who = get_location(r);
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
    return make_error(errc::corrupt, "checkpoint::decode_layout", "the layout makes no sense");
  return l;
}

std::vector<std::byte> encode(const error &e) {
  static constexpr condition all[] = {errc::out_of_memory,
                                      errc::address_space_exhausted,
                                      errc::invalid_argument,
                                      errc::not_supported,
                                      errc::busy,
                                      errc::device_lost,
                                      errc::corrupt};
  const auto *const like =
      std::find_if(std::begin(all), std::end(all), [&](errc c) { return e.is(c); });
  field_writer w;
  w.u32(static_cast<std::uint32_t>(like == std::end(all) ? errc::not_supported : *like));
  w.u64(e.value);
  return w.take();
}

error decode_refusal(std::span<const std::byte> from, const char *op) {
  field_reader r(from);
  const std::uint32_t like = r.u32();
  const std::uint64_t value = r.u64();
  const bool known =
      r.done() && like >= 1 && like <= static_cast<std::uint32_t>(errc::corrupt);
  return {make_error_code(known ? static_cast<errc>(like) : errc::corrupt), op,
          refused_there, known ? value : 0, 0};
}

}  // namespace stillmap::checkpoint
