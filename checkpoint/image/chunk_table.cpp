#include "stillmap/checkpoint/image/chunk_table.h"

#include <algorithm>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

// The position is that of the field in the file (in an encrypted table: before decryption).
tl::unexpected<error> wrong(const superblock &s, std::size_t record, std::size_t field,
                            const char *reason, std::string found, std::string expected) {
  return checkpoint::file_error(errc::corrupt, reason, part::chunk_table,
                                s.chunk_table.offset + record * record_bytes + field,
                                std::move(found), std::move(expected));
}
tl::unexpected<error> wrong(const superblock &s, std::size_t record, std::size_t field,
                            const char *reason, std::uint64_t found, std::string expected) {
  return wrong(s, record, field, reason, std::to_string(found), std::move(expected));
}

// The fields of a record, one list for encoding and decoding.
template <class Record, class Field>
void each_record_field(Record &r, const Field &field) {
  field(0, r.at);
  field(8, r.bytes);
  field(12, r.stored);
  field(16, r.where);
  field(24, r.kind);
  field(32, r.contents.bytes);
  field(48, r.stored_bytes.bytes);
}

status check_record(const chunk_record &r, const superblock &s, std::size_t i) {
  const auto kind = static_cast<std::uint8_t>(r.kind);
  if (kind > static_cast<std::uint8_t>(chunk_kind::parent)) {
    return wrong(s, i, 24, "unknown chunk kind", kind, "0 to 5");
  }
  if (r.bytes == 0 || r.bytes % block_bytes != 0 || r.bytes > s.chunk_bytes) {
    return wrong(s, i, 8, "invalid chunk size", r.bytes,
                 "a multiple of 4096 up to " + std::to_string(s.chunk_bytes));
  }
  if (!r.is_stored()) {
    if (r.stored != 0 || !r.stored_bytes.is_zero()) {
      return wrong(s, i, 12, "stored bytes in a record without an extent", r.stored, "0");
    }
    if (r.kind == chunk_kind::zero && r.where != 0) {
      return wrong(s, i, 16, "an extent offset in a record of kind zero", r.where, "0");
    }
    if (r.kind == chunk_kind::zero && !r.contents.is_zero()) {
      return wrong(s, i, 32, "a digest in a record of kind zero", r.contents.text(), "zero");
    }
    if (r.kind == chunk_kind::parent && !s.incremental()) {
      return wrong(s, i, 24, "a reference to the parent in an image without one", kind, "0 to 4");
    }
    return {};
  }
  const std::uint64_t payload = r.stored - std::min<std::uint64_t>(r.stored, s.tag());
  const bool fits =
      r.kind == chunk_kind::raw ? payload == r.bytes : payload > 0 && payload < r.bytes;
  if (!fits) {
    return wrong(
        s, i, 12, "the stored size is invalid for this kind", r.stored,
        (r.kind == chunk_kind::raw ? "" : "less than ") + std::to_string(r.bytes + s.tag()));
  }
  if (r.where < block_bytes || r.where % block_bytes != 0 || r.where > s.chunk_table.offset ||
      r.stored > s.chunk_table.offset - r.where) {
    return wrong(s, i, 16, "the extent is outside the extents area, or not aligned", r.where,
                 "a multiple of 4096 before " + std::to_string(s.chunk_table.offset));
  }
  return {};
}

// Checks that a reference leads to a chunk with the same contents.
status check_equal(const chunk_record &r, const chunk_record &to, const superblock &s,
                   std::size_t i, const char *other_size, const char *other_digest) {
  if (to.bytes != r.bytes) return wrong(s, i, 8, other_size, r.bytes, std::to_string(to.bytes));
  if (to.contents == r.contents) return {};
  return wrong(s, i, 32, other_digest, r.contents.text(), to.contents.text());
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

std::vector<std::byte> encode(std::span<const chunk_record> table, const digest_key &key) {
  std::vector<std::byte> bytes(table.size() * record_bytes + key.bytes.size());
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto b = std::span(bytes).subspan(i * record_bytes, record_bytes);
    each_record_field(table[i], [&](std::size_t at, const auto &value) { store(b, at, value); });
  }
  store(std::span(bytes), table.size() * record_bytes, key.bytes);
  return bytes;
}

result<decoded_chunk_table> decode_chunk_table(bytes_view bytes, const superblock &s) {
  return with_host_memory("image::decode_chunk_table", [&]() -> result<decoded_chunk_table> {
    decoded_chunk_table out;
    auto &table = out.records;
    table.resize(s.chunks);
    out.key.bytes = load<decltype(digest_key::bytes)>(bytes, s.chunks * record_bytes);
    for (std::size_t i = 0; i < table.size(); ++i) {
      const bytes_view b = bytes.subspan(i * record_bytes, record_bytes);
      each_record_field(table[i], [&](std::size_t at, auto &value) {
        value = load<std::remove_reference_t<decltype(value)>>(b, at);
      });
      if (!all_zero(b.subspan(25, 7))) {
        return wrong(s, i, 25, "reserved bytes are not zero", load<std::uint8_t>(b, 25), "0");
      }
      STILLMAP_RETURN_IF_ERROR(check_record(table[i], s, i));
    }
    return out;
  });
}

status check_layout(std::span<const chunk_record> table, std::span<const std::uint64_t> page_bytes,
                    const superblock &s) {
  return with_host_memory("image::check_layout", [&]() -> status {
    // Compares with the expected layout without building it: a forged table costs no memory.
    std::size_t i = 0;
    std::uint64_t at = 0;
    for (const std::uint64_t page : page_bytes) {
      for (std::uint64_t in = 0; in < page; ++i) {
        const std::uint64_t bytes = std::min<std::uint64_t>(page - in, s.chunk_bytes);
        if (i == table.size()) {
          return wrong(s, i, 0, "fewer chunks than the pages need", table.size(), "more");
        }
        if (table[i].at != at + in) {
          return wrong(s, i, 0, "the chunk does not follow the one before", table[i].at,
                       std::to_string(at + in));
        }
        if (table[i].bytes != bytes) {
          return wrong(s, i, 8, "the chunk size does not fit its page", table[i].bytes,
                       std::to_string(bytes));
        }
        in += bytes;
      }
      at += page;
    }
    if (i != table.size()) {
      return wrong(s, i, 0, "more chunks than the pages need", table.size(), std::to_string(i));
    }
    if (at != s.contents_bytes) {
      return checkpoint::file_error(
          errc::corrupt, "the size of the contents is not the sum of the pages", part::superblock,
          136, std::to_string(s.contents_bytes), std::to_string(at));
    }
    return {};
  });
}

status check_extents(std::span<const chunk_record> table, const superblock &s) {
  return with_host_memory("image::check_extents", [&]() -> status {
    std::vector<std::size_t> stored;
    for (std::size_t i = 0; i < table.size(); ++i) {
      if (table[i].is_stored()) stored.push_back(i);
    }
    std::sort(stored.begin(), stored.end(),
              [&](std::size_t a, std::size_t b) { return table[a].where < table[b].where; });
    std::uint64_t end = block_bytes;
    for (const std::size_t i : stored) {
      if (table[i].where != end) {
        return wrong(s, i, 16, table[i].where < end ? "extents overlap" : "a gap between extents",
                     table[i].where, std::to_string(end));
      }
      end = to_block(table[i].extent().end());
    }
    if (end != s.chunk_table.offset) {
      return checkpoint::file_error(errc::corrupt, "the chunk table does not follow the extents",
                                    part::superblock, 152, std::to_string(s.chunk_table.offset),
                                    std::to_string(end));
    }
    const std::uint64_t seals = stored.size() * seal_bytes + s.tag();
    if (s.is_signed() && s.seals.bytes != seals) {
      return checkpoint::file_error(
          errc::corrupt, "the number of seals is not the number of extents", part::superblock, 192,
          std::to_string(s.seals.bytes), std::to_string(seals));
    }
    return {};
  });
}

status check_references(std::span<const chunk_record> table, const superblock &s) {
  return with_host_memory("image::check_references", [&]() -> status {
    for (std::size_t i = 0; i < table.size(); ++i) {
      const chunk_record &r = table[i];
      if (r.kind != chunk_kind::same) continue;
      if (r.where >= i || !table[r.where].is_stored()) {
        return wrong(s, i, 16, "the reference does not lead to an earlier stored chunk", r.where,
                     "less than " + std::to_string(i) + ", of kind 1 to 3");
      }
      STILLMAP_RETURN_IF_ERROR(check_equal(r, table[r.where], s, i,
                                           "the reference leads to a chunk of another size",
                                           "the reference leads to a chunk with another digest"));
    }
    return {};
  });
}

status check_parent_references(std::span<const chunk_record> table, const superblock &s,
                               std::span<const chunk_record> parent) {
  return with_host_memory("image::check_parent_references", [&]() -> status {
    for (std::size_t i = 0; i < table.size(); ++i) {
      const chunk_record &r = table[i];
      if (r.kind != chunk_kind::parent) continue;
      if (r.where >= parent.size()) {
        return wrong(s, i, 16, "the reference leads to no chunk of the parent", r.where,
                     "less than " + std::to_string(parent.size()));
      }
      STILLMAP_RETURN_IF_ERROR(check_equal(
          r, parent[r.where], s, i, "the reference leads to a chunk of another size in the parent",
          "the reference leads to a chunk with another digest in the parent"));
    }
    return {};
  });
}

}  // namespace stillmap::image
