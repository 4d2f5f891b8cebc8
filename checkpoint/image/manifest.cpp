#include "stillmap/checkpoint/image/manifest.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

std::string number(const char *what, std::uint64_t n) {
  return std::string(what) + " " + std::to_string(n);
}

tl::unexpected<error> wrong(const char *reason, std::string found, std::string expected = {}) {
  return checkpoint::file_error(errc::corrupt, reason, part::manifest, 0, std::move(found),
                                std::move(expected));
}

status check_counts(const manifest &m) {
  std::size_t entries = 0, tags = 0, notes = 0;
  for (const auto &list : m.access_lists) entries += list.size();
  for (const std::string &tag : m.tags) tags += tag.size();
  for (const manifest::note &n : m.notes) notes += n.name.size() + n.bytes.size();
  const struct {
    const char *reason;
    std::size_t n, limit;
  } limits[] = {
      {"too many pages", m.pages.size(), max_pages},
      {"too many mappings", m.places.size(), max_places},
      {"too many blocks", m.blocks.size(), max_blocks},
      {"too many tags", m.tags.size(), max_tags},
      {"too many bytes of tags", tags, max_tag_bytes},
      {"too many access lists", m.access_lists.size(), max_access_lists},
      {"too many entries of access lists", entries, max_access_entries},
      {"too many notes", m.notes.size(), max_notes},
      {"too many bytes of notes", notes, max_note_bytes},
      {"the device name is too long", m.device.name.size(), 4096},
  };
  for (const auto &l : limits) {
    if (l.n <= l.limit) continue;
    return wrong(l.reason, std::to_string(l.n), "at most " + std::to_string(l.limit));
  }
  return {};
}

status check_pages(const manifest &m) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < m.pages.size(); ++i) {
    const std::uint64_t bytes = m.pages[i].bytes;
    if (bytes == 0 || bytes % block_bytes != 0) {
      return wrong("invalid page size", number("page", i) + number(" of", bytes),
                   "a multiple of 4096");
    }
    if (bytes > std::numeric_limits<std::int64_t>::max() - sum) {
      return wrong("the sum of the pages overflows", number("page", i));
    }
    sum += bytes;
  }
  return {};
}

bool is_range(std::uint64_t begin, std::uint64_t bytes) {
  return begin % block_bytes == 0 && bytes % block_bytes == 0 && bytes != 0 &&
         begin <= std::numeric_limits<std::uint64_t>::max() - bytes;
}

status check_blocks(const manifest &m) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < m.blocks.size(); ++i) {
    const manifest::block &b = m.blocks[i];
    if (!is_range(b.begin, b.bytes)) {
      return wrong("invalid block", number("block", i), "multiples of 4096");
    }
    if (b.begin < end) {
      return wrong("blocks are out of order or overlap", number("block at", b.begin),
                   number("at least", end));
    }
    if (b.tag >= m.tags.size()) {
      return wrong("no tag has this index", number("tag", b.tag),
                   number("less than", m.tags.size()));
    }
    end = b.begin + b.bytes;
  }
  return {};
}

status check_places(const manifest &m) {
  std::uint64_t end = 0;
  std::size_t block = 0, seen = 0;
  for (const manifest::place &p : m.places) {
    if (p.page >= m.pages.size()) {
      return wrong("no page has this index", number("page", p.page),
                   number("less than", m.pages.size()));
    }
    if (p.access >= m.access_lists.size()) {
      return wrong("no access list has this index", number("list", p.access),
                   number("less than", m.access_lists.size()));
    }
    const std::uint64_t bytes = m.pages[p.page].bytes;
    if (!is_range(p.address, bytes)) {
      return wrong("invalid mapping", number("a mapping at", p.address), "a multiple of 4096");
    }
    if (p.address < end) {
      return wrong("mappings are out of order or overlap", number("a mapping at", p.address),
                   number("at least", end));
    }
    end = p.address + bytes;
    while (block < m.blocks.size() && m.blocks[block].begin + m.blocks[block].bytes <= p.address) {
      ++block;
    }
    if (block == m.blocks.size() || p.address < m.blocks[block].begin ||
        end > m.blocks[block].begin + m.blocks[block].bytes) {
      return wrong("a mapping is outside of every block", number("a mapping at", p.address));
    }
    // Pages are numbered in the order of their first mapping.
    if (p.page > seen) {
      return wrong("pages are not in the order of their lowest addresses", number("page", p.page),
                   number("page", seen));
    }
    if (p.page == seen) ++seen;
  }
  if (seen != m.pages.size()) return wrong("a page is not mapped", number("page", seen));
  return {};
}

}  // namespace

std::vector<std::uint64_t> manifest::page_bytes() const {
  std::vector<std::uint64_t> bytes;
  bytes.reserve(pages.size());
  for (const page &p : pages) bytes.push_back(p.bytes);
  return bytes;
}

std::vector<std::uint64_t> manifest::lowest_addresses() const {
  std::vector<std::uint64_t> lowest;
  lowest.reserve(pages.size());
  for (const place &p : places) {
    if (p.page == lowest.size()) lowest.push_back(p.address);
  }
  return lowest;
}

status check(const manifest &m) {
  return with_host_memory("image::check", [&]() -> status {
    STILLMAP_RETURN_IF_ERROR(check_counts(m));
    STILLMAP_RETURN_IF_ERROR(check_pages(m));
    STILLMAP_RETURN_IF_ERROR(check_blocks(m));
    STILLMAP_RETURN_IF_ERROR(check_places(m));
    std::unordered_set<std::string_view> names;
    for (const manifest::note &n : m.notes) {
      if (n.name.empty() || !names.insert(n.name).second) {
        return wrong("a note has no name, or the name of another note", n.name);
      }
    }
    return {};
  });
}

}  // namespace stillmap::image
