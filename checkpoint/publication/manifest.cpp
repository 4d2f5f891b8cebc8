#include "stillmap/checkpoint/publication/manifest.h"

#include <algorithm>

#include "stillmap/checkpoint/base/wire_format.h"
#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::publication {
namespace {

using checkpoint::field_of;
using checkpoint::wire_reader;
using checkpoint::wire_writer;

template <class Wire>
void blob(Wire &w, field_of<Wire, std::vector<std::byte>> &b, std::size_t limit) {
  const std::size_t n = w.count(b, 1);
  w.check(n <= limit);
  if constexpr (Wire::reads) {
    b.resize(w.good() ? n : 0);
    w.bytes(std::span(b));
  } else {
    w.bytes(b);
  }
}

// Of all but the layout, which has an encoding of its own.
template <class Wire>
void fields(Wire &w, field_of<Wire, manifest> &m, field_of<Wire, std::vector<std::byte>> &layout) {
  w(m.name, m.device, m.page_bytes);
  blob(w, layout, checkpoint::largest_layout);
  blob(w, m.metadata, max_metadata_bytes);
  w(m.chunk_bytes, m.key.bytes);
  w.elements(m.digests, w.count(m.digests, sizeof(image::digest)),
             [&](auto &digest) { w(digest.bytes); });
}

std::size_t count_chunks(const manifest &m) {
  std::size_t chunks = 0;
  for (const auto &p : m.layout.pages) chunks += (p.bytes - 1) / m.chunk_bytes + 1;
  return chunks;
}

}  // namespace

image::sha256 manifest::id() const {
  return digests.empty() ? image::sha256() : image::sha256_of(encode(*this));
}

std::vector<checkpoint::published_reference> references_to(const manifest &m,
                                                           const checkpoint::memory_layout &l) {
  std::vector<checkpoint::published_reference> out;
  const image::sha256 id = m.id();
  if (id.is_zero()) return out;
  for (std::uint32_t i = 0; i < l.blocks.size(); ++i) {
    checkpoint::published_reference &r = out.emplace_back();
    r = {l.blocks[i].range, l.blocks[i].tag, m.name, {}, i};
    r.id.bytes = id.bytes;
  }
  return out;
}

status check_name(const std::string &name) {
  const operation_scope scope("publication::check_name");
  if (name.empty()) return make_error(errc::invalid_argument, "the name is empty");
  if (name.size() > max_name_bytes) {
    return make_error(errc::invalid_argument, "the name is too long", name.size(), max_name_bytes,
                      error_unit::bytes);
  }
  const auto control = [](unsigned char c) { return c < ' ' || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), control)) {
    return make_error(errc::invalid_argument, "the name contains a control character");
  }
  return {};
}

std::vector<std::byte> encode(const manifest &m) {
  const std::vector<std::byte> layout = checkpoint::encode(m.layout);
  wire_writer w;
  fields(w, m, layout);
  return w.take();
}

result<manifest> decode_manifest(std::span<const std::byte> from) {
  const operation_scope scope("publication::decode_manifest");
  wire_reader r(from);
  manifest m;
  std::vector<std::byte> layout;
  fields(r, m, layout);
  if (!r.done() || !check_name(m.name)) {
    return make_error(errc::corrupt, "the bytes are no manifest of published memory");
  }
  STILLMAP_ASSIGN_OR_RETURN(m.layout, checkpoint::decode_layout(layout));
  if (m.page_bytes == 0) return make_error(errc::corrupt, "the page size is 0");
  STILLMAP_RETURN_IF_ERROR(check(m.layout, m.page_bytes));
  if (!m.layout.published.empty()) {
    return make_error(errc::corrupt, "a publication contains another one (how many)",
                      m.layout.published.size());
  }
  if (m.digests.empty()) return m;
  if (m.chunk_bytes == 0 || m.chunk_bytes % image::block_bytes != 0) {
    return make_error(errc::corrupt, "the chunks of the digests have an invalid size",
                      m.chunk_bytes, image::block_bytes, error_unit::bytes);
  }
  if (m.digests.size() != count_chunks(m)) {
    return make_error(errc::corrupt, "the manifest has another number of digests than of chunks",
                      m.digests.size(), count_chunks(m), error_unit::items);
  }
  return m;
}

}  // namespace stillmap::publication
