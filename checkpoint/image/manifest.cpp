#include "stillmap/checkpoint/image/manifest.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "stillmap/checkpoint/image/digest.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::check(manifest)";

std::string number(const char *what, std::uint64_t n) {
  return std::string(what) + " " + std::to_string(n);
}

tl::unexpected<failure> wrong(const char *reason, std::string found, std::string expected = {}) {
  return fail(errc::corrupt, op, reason, part::manifest, 0, std::move(found),
              std::move(expected));
}

done over(const char *reason, std::size_t n, std::size_t limit) {
  if (n > limit) return wrong(reason, std::to_string(n), "at most " + std::to_string(limit));
  return {};
}

done check_counts(const manifest &m) {
  std::size_t entries = 0, tags = 0, notes = 0;
  for (const auto &list : m.access_lists) entries += list.size();
  for (const std::string &tag : m.tags) tags += tag.size();
  for (const manifest::note &n : m.notes) notes += n.name.size() + n.bytes.size();
  const struct {
    const char *reason;
    std::size_t n, limit;
  } limits[] = {
      {"too many pages", m.pages.size(), most_pages},
      {"too many places", m.places.size(), most_places},
      {"too many blocks", m.blocks.size(), most_blocks},
      {"too many tags", m.tags.size(), most_tags},
      {"too many bytes of tags", tags, most_tag_bytes},
      {"too many access lists", m.access_lists.size(), most_access_lists},
      {"too many entries of access lists", entries, most_access_entries},
      {"too many notes", m.notes.size(), most_notes},
      {"too many bytes of notes", notes, most_note_bytes},
      {"too long a name of a device", m.device.name.size(), 4096},
  };
  for (const auto &l : limits) {
    if (const auto ok = over(l.reason, l.n, l.limit); !ok) return ok;
  }
  return {};
}

done check_pages(const manifest &m) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < m.pages.size(); ++i) {
    const std::uint64_t bytes = m.pages[i].bytes;
    if (bytes == 0 || bytes % block_bytes != 0) {
      return wrong("a page of an impossible size", number("page", i) + number(" of", bytes),
                   "a multiple of 4096");
    }
    if (bytes > std::numeric_limits<std::int64_t>::max() - sum) {
      return wrong("more contents than can be", number("page", i));
    }
    sum += bytes;
  }
  return {};
}

bool is_range(std::uint64_t begin, std::uint64_t bytes) {
  return begin % block_bytes == 0 && bytes % block_bytes == 0 && bytes != 0 &&
         begin <= std::numeric_limits<std::uint64_t>::max() - bytes;
}

done check_blocks(const manifest &m) {
  std::uint64_t end = 0;
  for (std::size_t i = 0; i < m.blocks.size(); ++i) {
    const manifest::block &b = m.blocks[i];
    if (!is_range(b.begin, b.bytes)) {
      return wrong("an impossible block", number("block", i), "multiples of 4096");
    }
    if (b.begin < end) {
      return wrong("blocks out of order, or overlapping", number("block at", b.begin),
                   number("from", end));
    }
    if (b.tag >= m.tags.size()) {
      return wrong("a tag that there is not", number("tag", b.tag),
                   number("less than", m.tags.size()));
    }
    end = b.begin + b.bytes;
  }
  return {};
}

done check_places(const manifest &m) {
  std::uint64_t end = 0;
  std::size_t block = 0, seen = 0;
  for (const manifest::place &p : m.places) {
    if (p.page >= m.pages.size()) {
      return wrong("a page that there is not", number("page", p.page),
                   number("less than", m.pages.size()));
    }
    if (p.access >= m.access_lists.size()) {
      return wrong("an access list that there is not", number("list", p.access),
                   number("less than", m.access_lists.size()));
    }
    const std::uint64_t bytes = m.pages[p.page].bytes;
    if (!is_range(p.address, bytes)) {
      return wrong("an impossible place", number("a place at", p.address), "a multiple of 4096");
    }
    if (p.address < end) {
      return wrong("places out of order, or overlapping", number("a place at", p.address),
                   number("from", end));
    }
    end = p.address + bytes;
    while (block < m.blocks.size() && m.blocks[block].begin + m.blocks[block].bytes <= p.address) {
      ++block;
    }
    if (block == m.blocks.size() || p.address < m.blocks[block].begin ||
        end > m.blocks[block].begin + m.blocks[block].bytes) {
      return wrong("a place outside of every block", number("a place at", p.address));
    }
    // The first place of each page comes in the order of their numbers.
    if (p.page > seen) {
      return wrong("pages not in the order of their lowest addresses", number("page", p.page),
                   number("page", seen));
    }
    if (p.page == seen) ++seen;
  }
  if (seen != m.pages.size()) return wrong("a page that is nowhere mapped", number("page", seen));
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

done check(const manifest &m) {
  if (const auto ok = check_counts(m); !ok) return ok;
  if (const auto ok = check_pages(m); !ok) return ok;
  if (const auto ok = check_blocks(m); !ok) return ok;
  if (const auto ok = check_places(m); !ok) return ok;
  std::unordered_set<std::string_view> names;
  for (const manifest::note &n : m.notes) {
    if (n.name.empty() || !names.insert(n.name).second) {
      return wrong("a note without a name of its own", n.name);
    }
  }
  return {};
}

}  // namespace stillmap::image
