// Opens and reads images that may be damaged or forged. docs/image_format.md
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/chunk_table.h"
#include "stillmap/checkpoint/image/keys.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

struct open_image;

// Images in a chain of parents, the image that is read included.
inline constexpr unsigned max_chain_length = 64;

struct open_options {
  // Where to look for parents: paths of images, or of directories with images (sets) in them. They
  // are tried in order; a parent is recognised by its id and root digest.
  std::vector<std::string> parents;
  bool search_directory = true;  // also look for parents in the image's own directory, *.smi
  // Decrypts images, parents included, and refuses those that are not encrypted.
  std::optional<secret_key> key;
  // Refuses images that are not signed with this key, parents included. Without it a signature must
  // only be valid.
  std::optional<verifying_key> signed_by;
  // Limits: bytes of contents; and bytes of chunk table, manifest and seals, which are held in
  // memory, of the image and all its parents together.
  std::uint64_t max_contents_bytes = UINT64_MAX;
  std::uint64_t max_metadata_bytes = std::uint64_t{1} << 30;
  // Ends opening: it is asked before each image that is looked at and each part that is read.
  std::stop_token cancel;
  bool direct_io = true;  // bypass the page cache where the file system supports it
  checkpoint::file_system *files = &checkpoint::file_system::system();
};

struct verify_progress {
  std::uint64_t chunks = 0, total_chunks = 0;  // stored chunks
  std::uint64_t bytes = 0, total_bytes = 0;    // stored bytes
};

struct verify_options {
  unsigned threads = 0;  // 0: the number of processors, at most 8
  bool parents = true;   // verify the whole chain; false: only this file
  // Called after each chunk, by one thread at a time. Must not throw.
  std::function<void(const verify_progress &)> on_progress;
  std::stop_token cancel;
};

// An open image whose metadata has been checked completely. Copies share one open file.
// Threads: safe.
class reader {
 public:
  // Opens an image and checks its metadata and that of its parents.
  // Requires: nobody writes to the file. (Images are immutable: writers replace the name.)
  // Errors:   corrupt; not_supported (a newer format version, unknown flags, not a regular file);
  //           invalid_argument (encrypted and no key, over the limits in `options`);
  //           std::errc::no_such_file_or_directory (of the image, or of a parent: detail().where
  //           begins with "parent"); out_of_memory; operation_canceled; errors of system calls.
  // Cost:     reads the metadata of the image and of its parents; with search_directory and a
  //           parent, one block of each image in the directory. Memory and time grow with the
  //           metadata's bytes: twice them, and about 4 s for each GiB.
  static result<reader> open(const std::string &path, const open_options &options = {});

  const image::superblock &superblock() const;
  const image::manifest &manifest() const;
  std::span<const chunk_record> chunks() const;
  // The key of the contents' digests, the same in all images of a chain. Who knows it can make
  // contents that a child of this image takes for others.
  const image::digest_key &digest_key() const;
  std::optional<reader> parent() const;
  unsigned chain() const;  // images in the chain; 1 without a parent
  const std::string &path() const;
  // The key that verified the signature of a signed image. Says nothing about who holds that key.
  std::optional<verifying_key> signer() const;

  // Reads contents from `offset` on. Each whole chunk is read once; a part of a chunk costs reading
  // the chunk.
  // Ensures: `to` holds checked bytes only; on failure, zeros.
  // Errors:  invalid_argument (past the end); corrupt; out_of_memory; errors of system calls.
  status read(std::uint64_t offset, std::span<std::byte> to) const;
  // Reads one chunk. Requires: to.size() is the chunk's size. Fastest where `to` is aligned to
  // block_bytes. Ensures and errors: as read().
  status read_chunk(std::size_t number, std::span<std::byte> to) const;

  // Reads all stored data and checks every byte of it.
  // Errors: those of read(); operation_canceled.
  status verify(const verify_options &options = {}) const;

 private:
  friend class image_check;
  friend class image_opener;
  explicit reader(std::shared_ptr<const open_image> image);
  std::shared_ptr<const open_image> image_;
};

}  // namespace stillmap::image
