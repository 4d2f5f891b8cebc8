#include "stillmap/checkpoint/image/superblock.h"

#include <algorithm>
#include <bit>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

constexpr std::array<unsigned char, 8> image_magic = {0x89, 'S', 'M', 'I', 0x0d, 0x0a, 0x1a, 0x0a};

// The offset of each field: one list for encoding and decoding.
template <class S, class Field>
void each_superblock_field(S &s, const Field &field) {
  field(12, s.minor);
  field(16, s.flags);
  field(24, s.file_bytes);
  field(32, s.image.bytes);
  field(48, s.set.bytes);
  field(64, s.parent.bytes);
  field(80, s.parent_root.bytes);
  field(112, s.time);
  field(120, s.chunk_bytes);
  field(124, s.set_images);
  field(128, s.set_index);
  field(136, s.contents_bytes);
  field(144, s.chunks);
  field(152, s.chunk_table);
  field(168, s.manifest);
  field(184, s.seals);
  field(200, s.signature);
  field(216, s.chunk_table_sum.bytes);
  field(248, s.manifest_sum.bytes);
  field(280, s.seals_sum.bytes);
  field(authenticated_bytes, s.authentication.bytes);
}
constexpr std::uint32_t major_version = 2;
constexpr std::size_t major_at = 8, fields_end = 312, root_at = 4048, digest_at = 4080;
static_assert(sizeof(file_range) == 16);

tl::unexpected<error> wrong_superblock(std::uint64_t at, const char *reason, std::string found = {},
                                       std::string expected = {}) {
  return checkpoint::file_error(errc::corrupt, reason, part::superblock, at, std::move(found),
                                std::move(expected));
}

tl::unexpected<error> wrong_superblock(std::uint64_t at, const char *reason, std::uint64_t found,
                                       std::uint64_t expected) {
  return wrong_superblock(at, reason, std::to_string(found), std::to_string(expected));
}

// Checks that a part has `bytes` and begins at `expected`.
status follows(const file_range &r, std::uint64_t at, std::uint64_t expected, std::uint64_t bytes,
               const char *reason) {
  if (r.offset != expected) return wrong_superblock(at, reason, r.offset, expected);
  if (r.bytes != bytes) return wrong_superblock(at + 8, reason, r.bytes, bytes);
  return {};
}

status check_parts(const superblock &s) {
  if (s.file_bytes > max_file_bytes) {
    return wrong_superblock(24, "the file size exceeds the limit", s.file_bytes, max_file_bytes);
  }
  if (s.chunks > s.file_bytes / record_bytes) {
    return wrong_superblock(144, "more chunks than fit into the file", s.chunks,
                            s.file_bytes / record_bytes);
  }
  if (s.chunk_table.offset < block_bytes || s.chunk_table.offset > s.file_bytes ||
      s.chunk_table.offset % block_bytes != 0) {
    return wrong_superblock(152, "the chunk table is outside the file, or not aligned",
                            std::to_string(s.chunk_table.offset),
                            "a multiple of 4096 inside the file");
  }
  STILLMAP_RETURN_IF_ERROR(follows(s.chunk_table, 152, s.chunk_table.offset,
                                   s.chunks * record_bytes + key_bytes + s.tag(),
                                   "the size of the chunk table is not that of its records"));
  if (s.manifest.bytes > max_manifest_bytes + s.tag() || s.manifest.bytes <= s.tag()) {
    return wrong_superblock(176, "invalid size of the manifest", std::to_string(s.manifest.bytes),
                            "1 to " + std::to_string(max_manifest_bytes));
  }
  STILLMAP_RETURN_IF_ERROR(follows(s.manifest, 168, to_block(s.chunk_table.end()), s.manifest.bytes,
                                   "the manifest does not follow the chunk table"));
  std::uint64_t end = to_block(s.manifest.end());
  if (s.is_signed()) {
    if (s.seals.bytes > s.chunks * seal_bytes + s.tag()) {
      return wrong_superblock(192, "more seals than chunks", s.seals.bytes,
                              s.chunks * seal_bytes + s.tag());
    }
    STILLMAP_RETURN_IF_ERROR(
        follows(s.seals, 184, end, s.seals.bytes, "the seals do not follow the manifest"));
    end = to_block(s.seals.end());
    STILLMAP_RETURN_IF_ERROR(
        follows(s.signature, 200, end, signature_bytes, "the signature does not follow the seals"));
    end = to_block(s.signature.end());
  } else if (s.seals != file_range{} || s.signature != file_range{} || !s.seals_sum.is_zero()) {
    return wrong_superblock(184, "seals or a signature without the flag for them");
  }
  if (end != s.file_bytes)
    return wrong_superblock(24, "the parts do not fill the file", s.file_bytes, end);
  return {};
}

status check_fields(const superblock &s) {
  if (!std::has_single_bit(s.chunk_bytes) || s.chunk_bytes < min_chunk_bytes ||
      s.chunk_bytes > max_chunk_bytes) {
    return wrong_superblock(120, "invalid chunk_bytes", std::to_string(s.chunk_bytes),
                            "a power of two from 64 KiB to 64 MiB");
  }
  if (!s.encrypted() && !s.authentication.is_zero()) {
    return wrong_superblock(authenticated_bytes, "an authentication tag without encryption");
  }
  if (s.image.is_zero()) return wrong_superblock(32, "the image has no id");
  if (s.set.is_zero()) return wrong_superblock(48, "the set has no id");
  if (s.incremental() != !s.parent.is_zero() || s.parent_root.is_zero() != s.parent.is_zero()) {
    return wrong_superblock(64, "the flags and the parent id contradict each other",
                            s.parent.text());
  }
  if (s.parent == s.image)
    return wrong_superblock(64, "the image is its own parent", s.parent.text());
  if (s.set_images == 0 || s.set_images > max_images_in_set || s.set_index >= s.set_images) {
    return wrong_superblock(124, "invalid index in the set",
                            std::to_string(s.set_index) + " of " + std::to_string(s.set_images));
  }
  if (s.contents_bytes % block_bytes != 0) {
    return wrong_superblock(136, "the size of the contents is not a multiple of 4096",
                            std::to_string(s.contents_bytes));
  }
  return check_parts(s);
}

}  // namespace

superblock_bytes encode(superblock &s) {
  superblock_bytes b{};
  store(b, 0, image_magic);
  store(b, major_at, major_version);
  each_superblock_field(s, [&](std::size_t at, const auto &value) { store(b, at, value); });
  s.root = sha256_of(bytes_view(b).first(root_at));
  store(b, root_at, s.root.bytes);
  store(b, digest_at, digest_of(bytes_view(b).first(digest_at)).bytes);
  return b;
}

result<superblock> decode_superblock(bytes_view b) {
  return with_host_memory("image::decode_superblock", [&]() -> result<superblock> {
    const auto sum = digest_of(b.first(digest_at));
    const auto there = load<decltype(digest::bytes)>(b, digest_at);
    if (sum.bytes != there) {
      if (all_zero(b))
        return wrong_superblock(0, "not an image, or one whose writing did not finish");
      if (load<decltype(image_magic)>(b, 0) != image_magic)
        return wrong_superblock(0, "not an image");
      return wrong_superblock(digest_at, "the superblock is damaged", digest{there}.text(),
                              sum.text());
    }
    if (load<decltype(image_magic)>(b, 0) != image_magic)
      return wrong_superblock(0, "not an image");
    if (const auto major = load<std::uint32_t>(b, major_at); major != major_version) {
      return checkpoint::file_error(errc::not_supported, "unsupported version of the format",
                                    part::superblock, major_at, std::to_string(major),
                                    std::to_string(major_version));
    }
    superblock s;
    each_superblock_field(s, [&](std::size_t at, auto &value) {
      value = load<std::remove_reference_t<decltype(value)>>(b, at);
    });
    constexpr std::uint64_t known = flag_encrypted | flag_signed | flag_incremental;
    if ((s.flags & ~known) != 0) {
      return checkpoint::file_error(errc::not_supported, "unknown flags", part::superblock, 16,
                                    std::to_string(s.flags), "at most " + std::to_string(known));
    }
    s.root.bytes = load<decltype(s.root.bytes)>(b, root_at);
    if (const auto root = sha256_of(b.first(root_at)); root != s.root) {
      return wrong_superblock(root_at, "the root digest is wrong", s.root.text(), root.text());
    }
    // A later minor version may use these bytes.
    if (s.minor == 0 && (load<std::uint32_t>(b, 132) != 0 ||
                         !all_zero(b.subspan(fields_end, authenticated_bytes - fields_end)))) {
      return wrong_superblock(fields_end, "reserved bytes are not zero");
    }
    STILLMAP_RETURN_IF_ERROR(check_fields(s));
    return s;
  });
}

}  // namespace stillmap::image
