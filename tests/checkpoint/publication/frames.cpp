#include "tests/checkpoint/publication/frames.h"

#include "stillmap/checkpoint/publication/internal/contents_digests.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/support/far_away.h"

namespace stillmap::publication::testing {
namespace {

frame begin(kind k, const char *name) {
  return frame(static_cast<std::uint16_t>(k), name);
}

template <class Bytes>
void add_bytes(frame &f, const std::string &name, const Bytes &bytes) {
  f.block(name, {reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size()});
}

void add_layout(frame &f, const checkpoint::memory_layout &l) {
  const auto u32 = [&](const std::string &name, auto value) {
    f.number(name, static_cast<std::uint32_t>(value), 4);
  };
  u32("blocks", l.blocks.size());
  u32("pages", l.pages.size());
  u32("access lists", l.access.size());
  u32("places", l.places.size());
  for (const auto &b : l.blocks) {
    f.number("block address", b.range.begin.value(), 8);
    f.number("block bytes", b.range.bytes, 8);
    f.text("block tag", b.tag);
  }
  for (const auto &p : l.pages) {
    f.number("page bytes", p.bytes, 8);
    u32("page location kind", p.properties.location.kind);
    u32("page location", p.properties.location.id);
    u32("page exportable", p.properties.exportable);
    u32("page rdma", p.properties.rdma);
  }
  for (const auto &list : l.access) {
    u32("grants", list.size());
    for (const access_grant &g : list) {
      u32("grant location kind", g.location.kind);
      u32("grant location", g.location.id);
      u32("grant mode", g.mode);
    }
  }
  for (const auto &p : l.places) {
    f.number("place address", p.at.value(), 8);
    u32("place page", p.page);
    u32("place access", p.access);
  }
  u32("references", l.published.size());  // what is published contains no other publication
}

void add_manifest(frame &f, const publication::manifest &m) {
  f.text("name", m.name);
  add_bytes(f, "device", m.device);
  f.number("granularity", m.page_bytes, 8);
  f.number("layout bytes", checkpoint::encode(m.layout).size(), 4);
  add_layout(f, m.layout);
  f.number("metadata bytes", m.metadata.size(), 4);
  add_bytes(f, "metadata", m.metadata);
  f.number("chunk bytes", m.chunk_bytes, 8);
  add_bytes(f, "key", m.key.bytes);
  f.number("digests", m.digests.size(), 4);
  for (const auto &digest : m.digests) add_bytes(f, "digest", digest.bytes);
}

template <class T>
T must(result<T> r) {
  if (!r) throw std::runtime_error(r.error().message());
  return std::move(*r);
}
void must(const status &s) {
  if (!s) throw std::runtime_error(s.error().message());
}

}  // namespace

small_memory make_small(const device &d) {
  const std::size_t page = d.capabilities().page_bytes;
  const memory_location here = on_device(d.ordinal());
  checkpoint::memory_layout l;
  std::vector<page_ptr> pages;
  for (const std::size_t bytes : {page, 2 * page}) {
    const auto pool = must(page_pool::create(
        d, {.page_bytes = bytes, .exportable = handle_type::posix_fd, .keep_free = 0}));
    must(pool->acquire(1, pages));
    l.pages.push_back({bytes, pages.back()->properties()});
  }
  const device_address at(stillmap::testing::far_away);
  l.blocks = {{{at, 8 * page}, "weights", 0}, {{at + 16 * page, 2 * page}, "cache", 0}};
  l.access = {{{here, access_mode::read_write}}, {{here, access_mode::read}}};
  l.places = {{at, 0, 0}, {at + 2 * page, 1, 0}, {at + 16 * page, 0, 1}};
  small_memory out{must(checkpoint::restored_memory::reserve(d, l)), {}, {}};
  must(out.mapped.map(pages));
  const auto &places = out.mapped.layout().places;
  put(d, places[0].at, pattern(64, 1));
  put(d, places[1].at, pattern(64, 2));
  put(d, places[1].at + (2 * page - 64), pattern(64, 3));
  {
    const context_guard guard(d.driver(), d.context());
    for (const page_ptr &p : pages) out.fds.emplace_back(must(d.driver().export_fd(p->handle())));
  }
  out.manifest.name = "model";
  out.manifest.device = d.uuid();
  out.manifest.page_bytes = page;
  // As the layout of a message: with no ordinal of this process.
  out.manifest.layout = out.mapped.layout();
  for (auto &p : out.manifest.layout.pages) {
    p.properties.location.id = checkpoint::memory_layout::own_device;
  }
  for (auto &list : out.manifest.layout.access) {
    for (access_grant &g : list) g.location.id = checkpoint::memory_layout::own_device;
  }
  for (const char c : {'m', 'e', 't', 'a'}) {
    out.manifest.metadata.push_back(static_cast<std::byte>(c));
  }
  must(compute_digests(d, out.manifest));
  return out;
}

frame attach_frame(const attach_request &r) {
  frame f =
      begin(kind::attach, "attach").number("version", protocol_version, 4).text("name", r.name);
  f.number("generation", r.generation, 8);
  add_bytes(f, "id", r.id.bytes);
  add_bytes(f, "device", r.device);
  return f.number("granularity", r.page_bytes, 8)
      .number("wait", static_cast<std::uint64_t>(r.wait.count()), 4)
      .number("claim", r.claim, 4);
}

frame publish_frame(const publication::manifest &m) {
  frame f = begin(kind::publish, "publish").number("version", protocol_version, 4);
  add_manifest(f, m);
  return f;
}

frame attached_frame(std::uint64_t generation, const publication::manifest &m) {
  frame f = begin(kind::attached, "attached").number("generation", generation, 8);
  add_manifest(f, m);
  return f;
}

frame listing_frame(const listing &all) {
  frame f = begin(kind::listing, "listing").number("publications", all.size(), 4);
  for (const held_publication &p : all) {
    f.text("name", p.name).number("generation", p.generation, 8).number("newest", p.newest, 4);
    add_bytes(f, "device", p.device);
    add_bytes(f, "id", p.id.bytes);
    f.number("pages", p.pages, 8).number("bytes of it", p.bytes, 8);
    f.number("publisher", static_cast<std::uint32_t>(p.publisher), 4);
    f.number("readers", p.readers.size(), 4);
    for (const pid_t reader : p.readers) f.number("reader", static_cast<std::uint32_t>(reader), 4);
  }
  return f;
}

frame list_frame() {
  return begin(kind::list, "list").number("version", protocol_version, 4);
}
frame withdraw_frame(const std::string &name) {
  return begin(kind::withdraw, "withdraw")
      .number("version", protocol_version, 4)
      .text("name", name);
}
frame generation_frame(kind k, const char *name, std::uint64_t generation) {
  return begin(k, name).number("generation", generation, 8);
}
frame empty_frame(kind k, const char *name, std::vector<int> fds) {
  return begin(k, name).with(std::move(fds));
}

}  // namespace stillmap::publication::testing
