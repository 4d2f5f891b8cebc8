#include "stillmap/checkpoint/image/internal/open_image.h"

#include <cstring>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

std::unique_ptr<chunk_scratch> open_image::take_scratch() const {
  const lock_guard lock(mutex);
  if (spare.empty()) return std::make_unique<chunk_scratch>();
  auto s = std::move(spare.back());
  spare.pop_back();
  return s;
}

void open_image::return_scratch(std::unique_ptr<chunk_scratch> s) const {
  const lock_guard lock(mutex);
  if (spare.size() < spare.capacity()) spare.push_back(std::move(s));
}

open_image::source open_image::resolve(std::size_t n) const {
  // Checked on opening: references lead down the chain of parents, then to a stored record.
  const open_image *image = this;
  while (image->table[n].kind == chunk_kind::parent) {
    n = image->table[n].where;
    image = image->parent.get();
  }
  if (image->table[n].kind == chunk_kind::same) n = image->table[n].where;
  return {image, n};
}

status open_image::load(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                        bool thorough) const {
  auto ok = with_host_memory([&] { return load_checked(n, to, scratch, thorough); });
  if (!ok) std::memset(to.data(), 0, to.size());
  return checkpoint::in_file(std::move(ok), path);
}

status open_image::load_checked(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                                bool thorough) const {
  const chunk_record &r = table[n];
  if (r.kind == chunk_kind::zero) {
    std::memset(to.data(), 0, to.size());
    return {};
  }
  const auto corrupt = [&](const char *reason, std::string found, std::string expected) {
    return checkpoint::file_error(errc::corrupt, reason, part::extents, r.where, std::move(found),
                                  std::move(expected));
  };
  // A raw extent without encryption is its contents: read directly into aligned memory.
  const bool plain_text = r.kind == chunk_kind::raw && !decrypt_with;
  const bool direct = plain_text && checkpoint::is_aligned(to.data());
  std::span<std::byte> room = to;
  if (!direct) {
    STILLMAP_RETURN_IF_ERROR(scratch.stored.grow(to_block(r.stored)));
    room = scratch.stored.bytes().first(to_block(r.stored));
  }
  STILLMAP_RETURN_IF_ERROR(file.read(room, r.where));
  const std::span<std::byte> stored = room.first(r.stored);
  if (!all_zero(room.subspan(r.stored))) {
    return corrupt("the padding after an extent is not zero", {}, {});
  }
  if (!seals.empty()) {
    const sha256 &seal = seals[seal_of[n]];
    if (const sha256 found = sha256_of(stored); found != seal) {
      return corrupt("the SHA-256 of an extent differs from its seal", found.text(), seal.text());
    }
  }
  const auto check_stored = [&](const digest &found) -> status {
    if (found == r.stored_bytes) return {};
    return corrupt("the digest of the stored bytes differs", found.text(), r.stored_bytes.text());
  };
  if (plain_text && !direct) std::memcpy(to.data(), stored.data(), to.size());
  if (plain_text && !thorough) return check_stored(digest_of(stored));
  digest contents;
  if (plain_text) {
    STILLMAP_ASSIGN_OR_RETURN(const both_digests found, digests_of(key, stored));
    contents = found.contents;
    STILLMAP_RETURN_IF_ERROR(check_stored(found.stored));
  } else {
    STILLMAP_RETURN_IF_ERROR(check_stored(digest_of(stored)));
    std::span<std::byte> plain = stored.first(stored.size() - superblock.tag());
    if (decrypt_with) {
      if (auto ok = decrypt_with->decrypt({n, 0}, stored, plain); !ok) {
        return corrupt(ok.error().reason, {}, {});
      }
    }
    if (r.kind != chunk_kind::raw) {
      if (auto ok = scratch.packer.decompress(r.kind, plain, to); !ok) {
        return tl::unexpected(
            ok.error().with({.where = checkpoint::position(part::extents, r.where)}));
      }
    } else {
      std::memcpy(to.data(), plain.data(), to.size());
    }
    STILLMAP_ASSIGN_OR_RETURN(contents, digest_of_contents(key, to));
  }
  if (contents != r.contents) {
    return corrupt("the digest of the contents differs", contents.text(), r.contents.text());
  }
  return {};
}

}  // namespace stillmap::image
