#include "stillmap/checkpoint/snapshot/layout_manifest.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>

#include "stillmap/checkpoint/common/layout_wire.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/driver.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::memory_layout;

constexpr std::uint32_t no_page = UINT32_MAX;

result<std::vector<checkpoint::published_reference>> references_of(const image::manifest &m) {
  const auto note = std::find_if(m.notes.begin(), m.notes.end(),
                                 [](const auto &n) { return n.name == published_note; });
  if (note == m.notes.end()) return {};
  return checkpoint::decode_references(note->bytes);
}

}  // namespace

image::manifest manifest_of(const device &d, const memory_layout &l) {
  image::manifest m;
  m.device.name = d.name();
  const auto uuid = d.uuid();
  std::memcpy(m.device.uuid.data(), uuid.data(), uuid.size());
  m.device.memory_bytes = d.total_memory().bytes();
  m.device.granularity = d.capabilities().page_bytes;
  m.device.driver_version = static_cast<std::uint32_t>(d.driver().version());
  std::unordered_map<std::string, std::uint32_t> tags;
  for (const memory_layout::block &b : l.blocks) {
    const auto [tag, fresh] = tags.try_emplace(b.tag, static_cast<std::uint32_t>(m.tags.size()));
    if (fresh) m.tags.push_back(b.tag);
    m.blocks.push_back({b.range.begin.value(), b.range.bytes, b.generation, tag->second});
  }
  for (const memory_layout::page &p : l.pages) {
    m.pages.push_back({p.bytes, p.properties.location, p.properties.exportable, p.properties.rdma});
  }
  m.access_lists = l.access;
  for (const memory_layout::place &p : l.places) {
    m.places.push_back({p.at.value(), p.page, p.access});
  }
  if (!l.published.empty()) m.notes.push_back({published_note, checkpoint::encode(l.published)});
  return m;
}

std::vector<image::manifest::note> notes_of_application(const image::manifest &m) {
  std::vector<image::manifest::note> out;
  std::copy_if(m.notes.begin(), m.notes.end(), std::back_inserter(out),
               [](const auto &n) { return n.name != published_note; });
  return out;
}

result<selected_memory> select_memory(const image::manifest &m, std::span<const std::string> tags) {
  const operation_scope scope("snapshot::select_memory");
  std::vector<bool> chosen(m.tags.size(), tags.empty());
  STILLMAP_ASSIGN_OR_RETURN(auto published, references_of(m));
  if (!tags.empty()) {
    std::erase_if(published, [&](const auto &p) {
      return std::find(tags.begin(), tags.end(), p.tag) == tags.end();
    });
  }
  for (const std::string &tag : tags) {
    const auto found = std::find(m.tags.begin(), m.tags.end(), tag);
    if (found == m.tags.end()) {
      const auto has_tag = [&](const auto &p) { return p.tag == tag; };
      if (std::any_of(published.begin(), published.end(), has_tag)) continue;
      return tl::unexpected(
          make_error(errc::invalid_argument, "the image has no memory of this tag")
              .value()
              .with({.found = tag}));
    }
    chosen[static_cast<std::size_t>(found - m.tags.begin())] = true;
  }
  std::vector<std::uint64_t> offsets;
  std::uint64_t end = 0;
  for (const image::manifest::page &p : m.pages) {
    offsets.push_back(end);
    end += p.bytes;
  }
  selected_memory out;
  out.layout.published = std::move(published);
  out.layout.access = m.access_lists;
  std::vector<std::uint32_t> renumbered(m.pages.size(), no_page);
  auto place = m.places.begin();
  for (const image::manifest::block &b : m.blocks) {
    const virtual_range range{device_address(b.begin), static_cast<std::size_t>(b.bytes)};
    const bool take = chosen[b.tag];
    if (take) out.layout.blocks.push_back({range, m.tags[b.tag], b.generation});
    for (; place != m.places.end() && range.contains(device_address(place->address)); ++place) {
      if (!take) continue;
      std::uint32_t &page = renumbered[place->page];
      if (page == no_page) {
        page = static_cast<std::uint32_t>(out.layout.pages.size());
        const image::manifest::page &p = m.pages[place->page];
        out.layout.pages.push_back(
            {static_cast<std::size_t>(p.bytes), {p.where, p.exportable, p.rdma}});
        out.offsets.push_back(offsets[place->page]);
      }
      out.layout.places.push_back({device_address(place->address), page, place->access});
    }
  }
  return out;
}

}  // namespace stillmap::snapshot
