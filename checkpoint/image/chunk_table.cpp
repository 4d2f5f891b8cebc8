#include "stillmap/checkpoint/image/chunk_table.h"

#include <algorithm>

#include "stillmap/checkpoint/image/internal/wire.h"

namespace stillmap::image {
namespace {

constexpr const char *op = "image::open";

// A record's number leads to where it is in the file, unless the table is encrypted.
tl::unexpected<failure> wrong(const superblock &s, std::size_t record, std::size_t field,
                              const char *reason, std::uint64_t found, std::string expected) {
  return fail(errc::corrupt, op, reason, part::chunk_table,
              s.chunk_table.offset + record * record_bytes + field, std::to_string(found),
              std::move(expected));
}

done check_record(const chunk_record &r, const superblock &s, std::size_t i, std::uint8_t kind) {
  if (kind > static_cast<std::uint8_t>(chunk_kind::parent)) {
    return wrong(s, i, 24, "an unknown kind of chunk", kind, "0 to 5");
  }
  if (r.bytes == 0 || r.bytes % block_bytes != 0 || r.bytes > s.chunk_bytes) {
    return wrong(s, i, 8, "a chunk of an impossible size", r.bytes,
                 "a multiple of 4096 up to " + std::to_string(s.chunk_bytes));
  }
  if (!r.is_stored()) {
    if (r.stored != 0 || !r.stored_bytes.is_zero()) {
      return wrong(s, i, 12, "stored bytes where none are stored", r.stored, "0");
    }
    if (r.kind == chunk_kind::zero && r.where != 0) {
      return wrong(s, i, 16, "a chunk of zeros that is somewhere", r.where, "0");
    }
    if (r.kind == chunk_kind::zero && r.contents != digest_of_zeros(r.bytes)) {
      return fail(errc::corrupt, op, "a chunk of zeros with another digest", part::chunk_table,
                  s.chunk_table.offset + i * record_bytes + 32, r.contents.text(),
                  digest_of_zeros(r.bytes).text());
    }
    if (r.kind == chunk_kind::parent && !s.incremental()) {
      return wrong(s, i, 24, "a chunk of the parent's without a parent", kind, "0 to 4");
    }
    return {};
  }
  const std::uint64_t payload = r.stored - std::min<std::uint64_t>(r.stored, s.tag());
  const bool fits =
      r.kind == chunk_kind::raw ? payload == r.bytes : payload > 0 && payload < r.bytes;
  if (!fits) {
    return wrong(
        s, i, 12, "more or fewer bytes stored than its kind can be", r.stored,
        (r.kind == chunk_kind::raw ? "" : "less than ") + std::to_string(r.bytes + s.tag()));
  }
  if (r.where < block_bytes || r.where % block_bytes != 0 || r.where > s.chunk_table.offset ||
      r.stored > s.chunk_table.offset - r.where) {
    return wrong(s, i, 16, "an extent that is nowhere it can be", r.where,
                 "a multiple of 4096 before " + std::to_string(s.chunk_table.offset));
  }
  return {};
}

}  // namespace

std::vector<chunk_record> lay_out(std::span<const std::uint64_t> page_bytes,
                                  std::uint32_t chunk_bytes) {
  std::vector<chunk_record> table;
  std::uint64_t at = 0;
  for (const std::uint64_t page : page_bytes) {
    for (std::uint64_t in = 0; in < page;) {
      chunk_record r;
      r.at = at + in;
      r.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(page - in, chunk_bytes));
      in += r.bytes;
      table.push_back(r);
    }
    at += page;
  }
  return table;
}

std::vector<std::byte> encode(std::span<const chunk_record> table) {
  std::vector<std::byte> bytes(table.size() * record_bytes);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto b = std::span(bytes).subspan(i * record_bytes, record_bytes);
    const chunk_record &r = table[i];
    store(b, 0, r.at);
    store(b, 8, r.bytes);
    store(b, 12, r.stored);
    store(b, 16, r.where);
    store(b, 24, r.kind);
    store(b, 32, r.contents.bytes);
    store(b, 48, r.stored_bytes.bytes);
  }
  return bytes;
}

outcome<std::vector<chunk_record>> decode_chunk_table(bytes_view bytes, const superblock &s) {
  std::vector<chunk_record> table(bytes.size() / record_bytes);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const bytes_view b = bytes.subspan(i * record_bytes, record_bytes);
    chunk_record &r = table[i];
    const auto kind = load<std::uint8_t>(b, 24);
    r.at = load<std::uint64_t>(b, 0);
    r.bytes = load<std::uint32_t>(b, 8);
    r.stored = load<std::uint32_t>(b, 12);
    r.where = load<std::uint64_t>(b, 16);
    r.kind = static_cast<chunk_kind>(kind);
    r.contents.bytes = load<decltype(digest::bytes)>(b, 32);
    r.stored_bytes.bytes = load<decltype(digest::bytes)>(b, 48);
    if (!all_zero(b.subspan(25, 7))) {
      return wrong(s, i, 25, "something where zeros should be", load<std::uint8_t>(b, 25), "0");
    }
    if (const auto ok = check_record(r, s, i, kind); !ok) {
      return tl::unexpected<failure>(ok.error());
    }
  }
  return table;
}

done check_layout(std::span<const chunk_record> table, std::span<const std::uint64_t> page_bytes,
                  const superblock &s) {
  // Compared as it is made: a table that lies about its pages costs no memory.
  std::size_t i = 0;
  std::uint64_t at = 0;
  for (const std::uint64_t page : page_bytes) {
    for (std::uint64_t in = 0; in < page; ++i) {
      const std::uint64_t bytes = std::min<std::uint64_t>(page - in, s.chunk_bytes);
      if (i == table.size()) {
        return wrong(s, i, 0, "fewer chunks than the pages have", table.size(), "more");
      }
      if (table[i].at != at + in) {
        return wrong(s, i, 0, "a chunk that does not follow the one before", table[i].at,
                     std::to_string(at + in));
      }
      if (table[i].bytes != bytes) {
        return wrong(s, i, 8, "a chunk of another size than its page has", table[i].bytes,
                     std::to_string(bytes));
      }
      in += bytes;
    }
    at += page;
  }
  if (i != table.size()) {
    return wrong(s, i, 0, "more chunks than the pages have", table.size(), std::to_string(i));
  }
  if (at != s.contents_bytes) {
    return fail(errc::corrupt, op, "the pages are not the contents", part::superblock, 136,
                std::to_string(s.contents_bytes), std::to_string(at));
  }
  return {};
}

done check_extents(std::span<const chunk_record> table, const superblock &s) {
  std::vector<std::size_t> stored;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (table[i].is_stored()) stored.push_back(i);
  }
  std::sort(stored.begin(), stored.end(),
            [&](std::size_t a, std::size_t b) { return table[a].where < table[b].where; });
  std::uint64_t end = block_bytes;
  for (const std::size_t i : stored) {
    if (table[i].where != end) {
      return wrong(s, i, 16,
                   table[i].where < end ? "extents that overlap" : "a gap between extents",
                   table[i].where, std::to_string(end));
    }
    end = to_block(table[i].extent().end());
  }
  if (end != s.chunk_table.offset) {
    return fail(errc::corrupt, op, "the chunk table does not follow the extents",
                part::superblock, 152, std::to_string(s.chunk_table.offset), std::to_string(end));
  }
  const std::uint64_t seals = stored.size() * seal_bytes + s.tag();
  if (s.is_signed() && s.seals.bytes != seals) {
    return fail(errc::corrupt, op, "more or fewer seals than extents", part::superblock, 192,
                std::to_string(s.seals.bytes), std::to_string(seals));
  }
  return {};
}

done check_references(std::span<const chunk_record> table, const superblock &s) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    const chunk_record &r = table[i];
    if (r.kind != chunk_kind::same) continue;
    if (r.where >= i || !table[r.where].is_stored()) {
      return wrong(s, i, 16, "a reference to no earlier stored chunk", r.where,
                   "less than " + std::to_string(i) + ", of kind 1 to 3");
    }
    const chunk_record &to = table[r.where];
    if (to.bytes != r.bytes) {
      return wrong(s, i, 8, "a reference to a chunk of another size", r.bytes,
                   std::to_string(to.bytes));
    }
    if (to.contents != r.contents) {
      return fail(errc::corrupt, op, "a reference to a chunk with another digest",
                  part::chunk_table, s.chunk_table.offset + i * record_bytes + 32,
                  r.contents.text(), to.contents.text());
    }
  }
  return {};
}

done check_parent_references(std::span<const chunk_record> table, const superblock &s,
                             std::span<const chunk_record> parent) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    const chunk_record &r = table[i];
    if (r.kind != chunk_kind::parent) continue;
    if (r.where >= parent.size()) {
      return wrong(s, i, 16, "a reference to no chunk of the parent", r.where,
                   "less than " + std::to_string(parent.size()));
    }
    const chunk_record &to = parent[r.where];
    if (to.bytes != r.bytes) {
      return wrong(s, i, 8, "a reference to a parent's chunk of another size", r.bytes,
                   std::to_string(to.bytes));
    }
    if (to.contents != r.contents) {
      return fail(errc::corrupt, op, "a reference to a parent's chunk with another digest",
                  part::chunk_table, s.chunk_table.offset + i * record_bytes + 32,
                  r.contents.text(), to.contents.text());
    }
  }
  return {};
}

}  // namespace stillmap::image
