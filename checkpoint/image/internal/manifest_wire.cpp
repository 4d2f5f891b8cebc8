// Encodes and decodes the manifest as FlatBuffers.
#include <cstring>

#include "manifest_generated.h"
#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/checkpoint/image/superblock.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

tl::unexpected<error> wrong_encoding(const char *reason, std::string found = {},
                                     std::string expected = {}) {
  return checkpoint::file_error(errc::corrupt, reason, part::manifest, 0, std::move(found),
                                std::move(expected));
}

// The FlatBuffers verifier checks bounds, not the alignment of structs in vectors.
template <class T>
bool is_aligned_vector(const flatbuffers::Vector<const T *> *v) {
  // Builders do not align empty vectors.
  return v == nullptr || v->size() == 0 ||
         reinterpret_cast<std::uintptr_t>(v->Data()) % alignof(T) == 0;
}

// Checks all counts before copying anything. An encoding may share names and lists, so that few
// bytes decode to many.
status check_sizes(const wire::Manifest &w) {
  std::size_t tags = 0, entries = 0, notes = 0;
  for (const auto *t : *w.tags()) tags += t->size();
  for (const auto *l : *w.access_lists()) {
    if (l->entries() != nullptr) entries += l->entries()->size();
  }
  for (const auto *n : *w.notes()) notes += n->name()->size() + n->bytes()->size();
  const struct {
    const char *reason;
    std::size_t n, limit;
  } limits[] = {
      {"too many tags", w.tags()->size(), max_tags},
      {"too many blocks", w.blocks()->size(), max_blocks},
      {"too many pages", w.pages()->size(), max_pages},
      {"too many access lists", w.access_lists()->size(), max_access_lists},
      {"too many mappings", w.places()->size(), max_places},
      {"too many notes", w.notes()->size(), max_notes},
      {"too many bytes of tags", tags, max_tag_bytes},
      {"too many entries of access lists", entries, max_access_entries},
      {"too many bytes of notes", notes, max_note_bytes},
  };
  for (const auto &l : limits) {
    if (l.n > l.limit) {
      return wrong_encoding(l.reason, std::to_string(l.n), "at most " + std::to_string(l.limit));
    }
  }
  bool aligned = is_aligned_vector(w.blocks()) && is_aligned_vector(w.pages()) &&
                 is_aligned_vector(w.places());
  for (const auto *l : *w.access_lists()) aligned = aligned && is_aligned_vector(l->entries());
  if (!aligned) return wrong_encoding("a vector is not aligned");
  if (w.device()->uuid()->size() != 16) {
    return wrong_encoding("the size of the device UUID is wrong",
                          std::to_string(w.device()->uuid()->size()), "16");
  }
  return {};
}

result<memory_location> read(const wire::Location &w) {
  if (w.kind() > 2) {
    return wrong_encoding("unknown kind of location", std::to_string(w.kind()), "0 to 2");
  }
  static constexpr location_kind kinds[] = {location_kind::device, location_kind::host,
                                            location_kind::host_numa};
  return memory_location{kinds[w.kind()], w.ordinal()};
}

wire::Location write(const memory_location &l) {
  const std::uint8_t kind = l.kind == location_kind::device ? 0
                            : l.kind == location_kind::host ? 1
                                                            : 2;
  return wire::Location(l.id, kind);
}

status read_pages(const wire::Manifest &w, manifest &m) {
  m.pages.reserve(w.pages()->size());
  for (const wire::Page *p : *w.pages()) {
    STILLMAP_ASSIGN_OR_RETURN(const auto where, read(p->where()));
    if (p->handle() > 2 || p->rdma() > 1) {
      return wrong_encoding("unknown handle type or RDMA flag", std::to_string(p->handle()),
                            "0 to 2");
    }
    m.pages.push_back({p->bytes(), where, static_cast<handle_type>(p->handle()), p->rdma() == 1});
  }
  return {};
}

status read_access(const wire::Manifest &w, manifest &m) {
  for (const wire::AccessList *l : *w.access_lists()) {
    auto &list = m.access_lists.emplace_back();
    if (l->entries() == nullptr) continue;
    for (const wire::Access *a : *l->entries()) {
      STILLMAP_ASSIGN_OR_RETURN(const auto where, read(a->where()));
      if (a->mode() > 2) {
        return wrong_encoding("unknown access mode", std::to_string(a->mode()), "0 to 2");
      }
      list.push_back({where, static_cast<access_mode>(a->mode())});
    }
  }
  return {};
}

}  // namespace

result<std::vector<std::byte>> encode(const manifest &m) {
  return with_host_memory("image::encode", [&]() -> result<std::vector<std::byte>> {
    flatbuffers::FlatBufferBuilder b(4096);
    std::vector<flatbuffers::Offset<flatbuffers::String>> tags;
    for (const std::string &t : m.tags) tags.push_back(b.CreateString(t));
    std::vector<wire::Block> blocks;
    for (const auto &k : m.blocks) blocks.emplace_back(k.begin, k.bytes, k.generation, k.tag);
    std::vector<wire::Page> pages;
    for (const auto &p : m.pages) {
      pages.emplace_back(p.bytes, write(p.where), static_cast<std::uint8_t>(p.exportable),
                         p.rdma ? 1 : 0);
    }
    std::vector<flatbuffers::Offset<wire::AccessList>> lists;
    for (const auto &list : m.access_lists) {
      std::vector<wire::Access> entries;
      for (const access_grant &a : list) {
        entries.emplace_back(write(a.location), static_cast<std::uint8_t>(a.mode));
      }
      lists.push_back(wire::CreateAccessList(b, b.CreateVectorOfStructs(entries)));
    }
    std::vector<wire::Place> places;
    for (const auto &p : m.places) places.emplace_back(p.address, p.page, p.access);
    std::vector<flatbuffers::Offset<wire::Note>> notes;
    for (const auto &n : m.notes) {
      const auto name = b.CreateString(n.name);
      const auto bytes =
          b.CreateVector(reinterpret_cast<const std::uint8_t *>(n.bytes.data()), n.bytes.size());
      notes.push_back(wire::CreateNote(b, name, bytes));
    }
    const auto device_name = b.CreateString(m.device.name);
    const auto uuid = b.CreateVector(reinterpret_cast<const std::uint8_t *>(m.device.uuid.data()),
                                     m.device.uuid.size());
    const auto device = wire::CreateDevice(b, device_name, uuid, m.device.memory_bytes,
                                           m.device.granularity, m.device.driver_version);
    const auto all_tags = b.CreateVector(tags);
    const auto all_blocks = b.CreateVectorOfStructs(blocks);
    const auto all_pages = b.CreateVectorOfStructs(pages);
    const auto all_lists = b.CreateVector(lists);
    const auto all_places = b.CreateVectorOfStructs(places);
    const auto all_notes = b.CreateVector(notes);
    wire::FinishManifestBuffer(b, wire::CreateManifest(b, device, all_tags, all_blocks, all_pages,
                                                       all_lists, all_places, all_notes));
    if (b.GetSize() > max_manifest_bytes) {
      return checkpoint::file_error(errc::invalid_argument, "the manifest is too large",
                                    part::manifest, 0, std::to_string(b.GetSize()),
                                    "at most " + std::to_string(max_manifest_bytes));
    }
    const auto *begin = reinterpret_cast<const std::byte *>(b.GetBufferPointer());
    return std::vector<std::byte>(begin, begin + b.GetSize());
  });
}

result<manifest> decode_manifest(const std::byte *bytes, std::size_t size) {
  return with_host_memory("image::decode_manifest", [&]() -> result<manifest> {
    // Tables: one of all, the device, the lists and the notes.
    flatbuffers::Verifier verifier(reinterpret_cast<const std::uint8_t *>(bytes), size, 8,
                                   2 + max_access_lists + max_notes);
    if (size < 16 || !wire::VerifyManifestBuffer(verifier))
      return wrong_encoding("the FlatBuffers encoding is invalid");
    const wire::Manifest &w = *wire::GetManifest(bytes);
    STILLMAP_RETURN_IF_ERROR(check_sizes(w));
    manifest m;
    m.device.name = w.device()->name()->str();
    std::memcpy(m.device.uuid.data(), w.device()->uuid()->data(), 16);
    m.device.memory_bytes = w.device()->memory_bytes();
    m.device.granularity = w.device()->granularity();
    m.device.driver_version = w.device()->driver_version();
    for (const auto *t : *w.tags()) m.tags.push_back(t->str());
    m.blocks.reserve(w.blocks()->size());
    for (const wire::Block *k : *w.blocks()) {
      m.blocks.push_back({k->begin(), k->bytes(), k->generation(), k->tag()});
    }
    STILLMAP_RETURN_IF_ERROR(read_pages(w, m));
    STILLMAP_RETURN_IF_ERROR(read_access(w, m));
    m.places.reserve(w.places()->size());
    for (const wire::Place *p : *w.places()) {
      m.places.push_back({p->address(), p->page(), p->access()});
    }
    for (const wire::Note *n : *w.notes()) {
      const auto *begin = reinterpret_cast<const std::byte *>(n->bytes()->data());
      m.notes.push_back({n->name()->str(), {begin, begin + n->bytes()->size()}});
    }
    STILLMAP_RETURN_IF_ERROR(check(m));
    return m;
  });
}

}  // namespace stillmap::image
