// Reads images that may be damaged, forged, or somebody else's. docs/image_format.md
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/chunk_table.h"
#include "stillmap/checkpoint/image/keys.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

class file_calls;

inline constexpr unsigned longest_chain = 64;  // images, the one that is read included

struct open_options {
  // Where parents may be, by path: images, or folders with images (sets) in them. Tried in order,
  // taken by number and root.
  std::vector<std::string> parents;
  bool look_beside = true;  // also among the *.smi in the image's directory
  // For encrypted images; of the parents too.
  std::optional<secret_key> key;
  // Refuses what is not signed with this, parents too. Without: a signature must only be one.
  std::optional<verifying_key> signed_by;
  // What the caller is ready for: contents, as much as there is memory to restore them into; and
  // the bytes of table, manifest and seals, which are held in memory.
  std::uint64_t most_contents = UINT64_MAX;
  std::uint64_t most_metadata = std::uint64_t{1} << 30;
  bool past_page_cache = true;  // where the file system can
  file_calls *calls = nullptr;  // for tests; the system's
};

struct verify_progress {
  std::uint64_t chunks = 0, of_chunks = 0;  // of those that are stored
  std::uint64_t bytes = 0, of_bytes = 0;    // stored
};

struct verify_options {
  unsigned threads = 0;  // 0: as many as there are processors, at most 8
  bool parents = true;   // all of the chain, or only this file
  // Called after each chunk, by one thread at a time; false: give up. Must not throw.
  std::function<bool(const verify_progress &)> on_progress;
};

// An open image, all of whose metadata has been checked. A copy is the same open image.
// Threads: safe.
class reader {
 public:
  // Requires: nobody writes to the file. (Images never change: a new one takes the name.)
  // Errors: corrupt; not_supported (a newer version, unknown flags, no regular file);
  //         invalid_argument (encrypted and no key, over the limits in options);
  //         std::errc::no_such_file_or_directory (also: part::parent, no such parent found);
  //         out_of_memory; the system's.
  // Cost: reads the metadata of the image and of its parents; with look_beside and a parent,
  //       a block of each image beside. Memory: about the bytes of the metadata.
  static outcome<reader> open(const std::string &path, const open_options &options = {});

  const superblock &head() const;
  const manifest &what() const;
  std::span<const chunk_record> chunks() const;
  std::optional<reader> parent() const;
  unsigned chain() const;  // images, 1 without a parent
  const std::string &path() const;
  std::optional<verifying_key> signer() const;  // of a signed image; whose key that is, is not said

  // Contents from `offset` on; of whole chunks each once, of others all for a piece.
  // Ensures: nothing is in `to` that has not been checked; failure: zeros are.
  // Errors: invalid_argument (past the end); corrupt; out_of_memory; the system's.
  done read(std::uint64_t offset, std::span<std::byte> to) const;
  // One chunk. Requires: to.size() is its bytes. Fastest where `to` is aligned to block_bytes.
  done read_chunk(std::size_t number, std::span<std::byte> to) const;

  // Reads everything that is stored, and checks every byte of it.
  // Errors: of read(); std::errc::operation_canceled.
  done verify(const verify_options &options = {}) const;

 private:
  friend class image_opener;
  friend class image_check;
  struct core;
  explicit reader(std::shared_ptr<const core> c);
  std::shared_ptr<const core> core_;
};

}  // namespace stillmap::image
