#include "stillmap/checkpoint/common/layout_wire.h"

#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/vmm/base/operation.h"

namespace stillmap::checkpoint {
namespace {

template <class Wire>
void fields(Wire &w, field_of<Wire, memory_location> &l) {
  w(up_to(l.kind, location_kind::host_numa_current), l.id);
  // A layout names no other device than its own.
  w.check(l.kind != location_kind::device || l.id == memory_layout::own_device);
}

template <class Wire>
void fields(Wire &w, field_of<Wire, std::vector<published_reference>> &l) {
  w.elements(l, w.count(l, 60),
             [&](auto &p) { w(p.range.begin, p.range.bytes, p.tag, p.name, p.id.bytes, p.block); });
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
  fields(w, l.published);
}

}  // namespace

std::vector<std::byte> encode(const memory_layout &l) {
  wire_writer w;
  fields(w, l);
  return w.take();
}

result<memory_layout> decode_layout(std::span<const std::byte> from) {
  const operation_scope scope("checkpoint::decode_layout");
  wire_reader r(from);
  memory_layout l;
  fields(r, l);
  if (r.done()) return l;
  return make_error(errc::corrupt, "the bytes are no memory layout");
}

std::vector<std::byte> encode(const std::vector<published_reference> &l) {
  wire_writer w;
  fields(w, l);
  return w.take();
}

result<std::vector<published_reference>> decode_references(std::span<const std::byte> from) {
  const operation_scope scope("checkpoint::decode_references");
  wire_reader r(from);
  std::vector<published_reference> l;
  fields(r, l);
  if (r.done()) return l;
  return make_error(errc::corrupt, "the bytes are no references to published memory");
}

}  // namespace stillmap::checkpoint
