// Opening checks every part of an image before anything uses it.
// docs/image_format.md#reading-hostile-files
#include "stillmap/checkpoint/image/internal/image_opener.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/atomic_file.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/checkpoint/image/parts.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {
namespace {

std::string at_most(std::uint64_t n) {
  return "at most " + std::to_string(n);
}

status set_parent(open_image &image, const std::shared_ptr<const open_image> &parent) {
  if (image.key != parent->key) {
    const superblock &s = image.superblock;
    return checkpoint::file_error(errc::corrupt, "the key of the digests is not that of the parent",
                                  part::chunk_table,
                                  s.chunk_table.offset + s.chunks * record_bytes);
  }
  STILLMAP_RETURN_IF_ERROR(check_parent_references(image.table, image.superblock, parent->table));
  image.parent = parent;
  image.chain = parent->chain + 1;
  return {};
}

}  // namespace

status image_opener::check_canceled() const {
  if (!options_.cancel.stop_requested()) return {};
  return make_error(errc::operation_canceled, "stop requested");
}

status image_opener::check_limits(const superblock &s) {
  if (s.contents_bytes > options_.max_contents_bytes) {
    return checkpoint::file_error(errc::invalid_argument, "the contents exceed max_contents_bytes",
                                  part::superblock, 136, std::to_string(s.contents_bytes),
                                  at_most(options_.max_contents_bytes));
  }
  // At most 64 images of less than 2^56 bytes: no overflow.
  metadata_bytes_ += s.chunk_table.bytes + s.manifest.bytes + s.seals.bytes;
  if (metadata_bytes_ > options_.max_metadata_bytes) {
    return checkpoint::file_error(
        errc::invalid_argument,
        "the metadata of the image and its parents exceeds max_metadata_bytes", part::superblock,
        152, std::to_string(metadata_bytes_), at_most(options_.max_metadata_bytes));
  }
  if (s.encrypted() && !options_.key) {
    return checkpoint::file_error(errc::invalid_argument,
                                  "the image is encrypted, and no key was given", part::superblock,
                                  16);
  }
  if (options_.key && !s.encrypted()) {
    // Who can replace the file, and does not know the key, must not be able to choose its contents.
    return checkpoint::file_error(errc::corrupt, "the image is not encrypted", part::superblock, 16,
                                  "no encryption", "encrypted with the key that was given");
  }
  if (options_.signed_by && !s.is_signed()) {
    return checkpoint::file_error(errc::corrupt, "the image is not signed", part::superblock, 16,
                                  "no signature", "signed with " + options_.signed_by->text());
  }
  return {};
}

status image_opener::read_signature(open_image &image) const {
  const std::uint64_t at = image.superblock.signature.offset;
  STILLMAP_ASSIGN_OR_RETURN(const auto room, checkpoint::aligned_memory::create(block_bytes));
  const auto b = room.bytes();
  STILLMAP_RETURN_IF_ERROR(image.file.read(b, at));
  if (!all_zero(b.subspan(signature_bytes))) {
    return checkpoint::file_error(errc::corrupt, "the padding after the signature is not zero",
                                  part::signature, at + signature_bytes);
  }
  const verifying_key key{load<decltype(verifying_key::bytes)>(b, 0)};
  const signature s{load<decltype(signature::bytes)>(b, key.bytes.size())};
  if (options_.signed_by && key != *options_.signed_by) {
    return checkpoint::file_error(errc::corrupt, "the image is signed with another key",
                                  part::signature, at, key.text(), options_.signed_by->text());
  }
  if (!is_signature(s, key, image.superblock.root)) {
    return checkpoint::file_error(errc::corrupt, "the signature does not match the root digest",
                                  part::signature, at + key.bytes.size(), s.text());
  }
  image.signer = key;
  return {};
}

result<std::vector<std::byte>> image_opener::read_part(open_image &image, const char *where,
                                                       const file_range &r, const sha256 &sum,
                                                       nonce n) const {
  STILLMAP_RETURN_IF_ERROR(check_canceled());
  STILLMAP_ASSIGN_OR_RETURN(const auto room, checkpoint::aligned_memory::create(to_block(r.bytes)));
  STILLMAP_RETURN_IF_ERROR(image.file.read(room.bytes(), r.offset));
  const bytes_view stored = room.bytes().first(r.bytes);
  if (const sha256 found = sha256_of(stored); found != sum) {
    return checkpoint::file_error(errc::corrupt, "the SHA-256 differs from the superblock's", where,
                                  r.offset, found.text(), sum.text());
  }
  if (!all_zero(room.bytes().subspan(r.bytes))) {
    return checkpoint::file_error(errc::corrupt, "the padding is not zero", where, r.end());
  }
  std::vector<std::byte> bytes(r.bytes - image.superblock.tag());
  if (!image.decrypt_with) {
    std::copy(stored.begin(), stored.end(), bytes.begin());
  } else if (auto ok = image.decrypt_with->decrypt(n, stored, bytes); !ok) {
    return tl::unexpected(ok.error().with({.where = checkpoint::position(where, r.offset)}));
  }
  return bytes;
}

status image_opener::read_seals(open_image &image) const {
  const superblock &s = image.superblock;
  STILLMAP_ASSIGN_OR_RETURN(const auto bytes,
                            read_part(image, part::seals, s.seals, s.seals_sum, nonce_of_seals));
  // check_extents compared their number with that of the extents.
  for (std::size_t at = 0; at < bytes.size(); at += seal_bytes) {
    image.seals.push_back({load<decltype(sha256::bytes)>(bytes, at)});
  }
  image.seal_of.resize(image.table.size());
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < image.table.size(); ++i) {
    if (image.table[i].is_stored()) image.seal_of[i] = next++;
  }
  return {};
}

result<std::shared_ptr<open_image>> image_opener::try_parent(const open_image &image, int directory,
                                                             const std::string &name,
                                                             const std::string &path,
                                                             bool &replaced) {
  STILLMAP_RETURN_IF_ERROR(check_canceled());
  // Files that cannot be read, or are no images, are no candidates.
  auto f = checkpoint::block_file::open_to_read(image.file.files(), directory, name, false);
  std::array<std::byte, block_bytes> block;
  if (!f || !f->read(block, 0)) return std::shared_ptr<open_image>();
  const auto s = decode_superblock(block);
  if (!s || s->image != image.superblock.parent) return std::shared_ptr<open_image>();
  if (s->root != image.superblock.parent_root) {
    replaced = true;
    return std::shared_ptr<open_image>();
  }
  return open_file(directory, name, path, nullptr);
}

status image_opener::find_parent(open_image &image, int directory) {
  bool replaced = false;
  int unlisted = 0;  // the error of a folder whose names are not all known
  checkpoint::file_system &files = image.file.files();
  // Searches the images of an open directory; true: the parent was found and set.
  const auto search = [&](int in, const std::string &prefix) -> result<bool> {
    std::vector<std::string> names;
    if (const int r = files.names_in(in, names); r < 0) unlisted = -r;
    std::sort(names.begin(), names.end());
    for (const std::string &name : names) {
      if (!name.ends_with(".smi") || name.starts_with('.')) continue;
      STILLMAP_ASSIGN_OR_RETURN(const auto p, try_parent(image, in, name, prefix + name, replaced));
      if (!p) continue;
      STILLMAP_RETURN_IF_ERROR(set_parent(image, p));
      return true;
    }
    return false;
  };
  for (const std::string &path : options_.parents) {
    const int in = files.open_at(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (in >= 0) {
      const checkpoint::open_directory opened{files, in};
      STILLMAP_ASSIGN_OR_RETURN(const bool found,
                                search(in, path.ends_with('/') ? path : path + "/"));
      if (found) return {};
      continue;
    }
    const auto at = checkpoint::target_name::create(files, path);
    if (!at) continue;
    STILLMAP_ASSIGN_OR_RETURN(const auto p,
                              try_parent(image, at->directory(), at->name(), path, replaced));
    if (p) return set_parent(image, p);
  }
  if (options_.search_directory) {
    STILLMAP_ASSIGN_OR_RETURN(const bool found,
                              search(directory, image.path.substr(0, image.path.rfind('/') + 1)));
    if (found) return {};
  }
  const superblock &s = image.superblock;
  const auto e =
      replaced ? make_error(errc::corrupt, "the parent was replaced: its root digest differs")
      : unlisted != 0
          ? make_system_error(unlisted, "the parent was not found: a folder cannot be listed")
          : make_system_error(ENOENT, "the parent was not found");
  return tl::unexpected(
      e.value().with({.where = checkpoint::position(part::parent, 64),
                      .expected = s.parent.text() + " with root " + s.parent_root.text()}));
}

status image_opener::read_metadata(open_image &image, int directory,
                                   const std::shared_ptr<const open_image> &known_parent) {
  if (++depth_ > max_chain_length) {
    return checkpoint::file_error(errc::corrupt, "the chain of parents is too long", part::parent,
                                  64, {}, at_most(max_chain_length));
  }
  STILLMAP_ASSIGN_OR_RETURN(const std::uint64_t size, image.file.size());
  if (size < block_bytes) {
    return checkpoint::file_error(errc::corrupt, "the file is too short for an image", part::file,
                                  0, std::to_string(size), "at least 4096");
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto block, checkpoint::aligned_memory::create(block_bytes));
  STILLMAP_RETURN_IF_ERROR(image.file.read(block.bytes(), 0));
  STILLMAP_ASSIGN_OR_RETURN(image.superblock, decode_superblock(block.bytes()));
  const superblock &s = image.superblock;
  if (size != s.file_bytes) {
    return checkpoint::file_error(
        errc::corrupt, "the size of the file differs from the superblock's", part::superblock, 24,
        std::to_string(size), std::to_string(s.file_bytes));
  }
  STILLMAP_RETURN_IF_ERROR(check_limits(s));
  if (s.is_signed()) STILLMAP_RETURN_IF_ERROR(read_signature(image));
  if (s.encrypted()) {
    STILLMAP_ASSIGN_OR_RETURN(image.decrypt_with, cipher::create(*options_.key, s.image));
    if (auto ok = image.decrypt_with->check_authentic(
            nonce_of_superblock, block.bytes().first(authenticated_bytes), s.authentication);
        !ok) {
      return tl::unexpected(
          ok.error().with({.where = checkpoint::position(part::superblock, authenticated_bytes)}));
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto table, read_part(image, part::chunk_table, s.chunk_table,
                                                        s.chunk_table_sum, nonce_of_table));
  STILLMAP_ASSIGN_OR_RETURN(const auto manifest, read_part(image, part::manifest, s.manifest,
                                                           s.manifest_sum, nonce_of_manifest));
  STILLMAP_ASSIGN_OR_RETURN(auto records, decode_chunk_table(table, s));
  image.table = std::move(records.records);
  image.key = records.key;
  STILLMAP_RETURN_IF_ERROR(check_canceled());
  auto decoded = decode_manifest(manifest.data(), manifest.size());
  if (!decoded) {
    return tl::unexpected(
        decoded.error().with({.where = checkpoint::position(part::manifest, s.manifest.offset)}));
  }
  image.manifest = std::move(*decoded);
  STILLMAP_RETURN_IF_ERROR(check_layout(image.table, image.manifest.page_bytes(), s));
  STILLMAP_RETURN_IF_ERROR(check_extents(image.table, s));
  STILLMAP_RETURN_IF_ERROR(check_references(image.table, s));
  if (s.is_signed()) STILLMAP_RETURN_IF_ERROR(read_seals(image));
  if (!s.incremental()) return {};
  return known_parent ? set_parent(image, known_parent) : find_parent(image, directory);
}

result<std::shared_ptr<open_image>> image_opener::open_file(
    int directory, const std::string &name, const std::string &path,
    const std::shared_ptr<const open_image> &known_parent) {
  checkpoint::file_system &files = *options_.files;
  STILLMAP_ASSIGN_OR_RETURN(
      auto file,
      checkpoint::in_file(
          checkpoint::block_file::open_to_read(files, directory, name, options_.direct_io), path));
  const auto image = std::make_shared<open_image>(path, std::move(file));
  STILLMAP_RETURN_IF_ERROR(
      checkpoint::in_file(read_metadata(*image, directory, known_parent), path));
  return image;
}

result<reader> image_opener::open(int directory, const std::string &name, const std::string &path,
                                  const std::shared_ptr<const open_image> &known_parent) {
  const auto open_here = [&]() -> result<reader> {
    STILLMAP_ASSIGN_OR_RETURN(auto image, open_file(directory, name, path, known_parent));
    return reader(std::move(image));
  };
  return checkpoint::in_file(with_host_memory(open_here), path);
}

result<reader> reader::open(const std::string &path, const open_options &options) {
  const operation_scope scope("image::open");
  checkpoint::file_system &files = *options.files;
  STILLMAP_ASSIGN_OR_RETURN(
      const auto at,
      checkpoint::in_file(
          with_host_memory([&] { return checkpoint::target_name::create(files, path); }), path));
  return image_opener(options).open(at.directory(), at.name(), path);
}

}  // namespace stillmap::image
