// Writes images: whole, or not at all. docs/image_format.md#writing
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/reader.h"

namespace stillmap::image {

// Where contents come from.
// Threads: called by several at once, each for chunks of its own.
class contents_source {
 public:
  virtual ~contents_source();
  // `room.size()` bytes of the contents, from `offset` on: always one chunk. Either filled into
  // `room`, which is aligned to block_bytes, and returned; or memory of the source's own, which
  // then stays as it is until write() returns (best aligned as well: it is then written from
  // there). Must not throw.
  virtual outcome<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) = 0;
  // Its digest_of_contents, where that is known without reading it: asked for chunks that a parent
  // has, and then they are read only where they differ. Must not throw.
  virtual std::optional<digest> digest_of(std::uint64_t offset, std::size_t bytes);
};

// Contents that lie in memory as they are.
class contents_in_memory final : public contents_source {
 public:
  explicit contents_in_memory(bytes_view contents) : contents_(contents) {}
  outcome<bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override;

 private:
  bytes_view contents_;
};

enum class write_phase : std::uint8_t { contents, verifying };

struct write_progress {
  write_phase phase = write_phase::contents;
  std::uint64_t bytes = 0, of_bytes = 0;  // of contents; verifying: stored ones
  std::uint64_t stored = 0;               // bytes, so far
};

struct write_options {
  bool replace = false;           // an image that has the name already; else that is an error
  codec compress = codec::none;   // each chunk for which it is worth it
  bool share = true;              // chunks that are the same are stored once
  std::uint32_t chunk_bytes = 0;  // 0: the parent's, or 2 MiB
  // Writes an incremental image: what the parent has is not stored again. It must stay where a
  // reader finds it.
  std::optional<reader> parent;
  image_id set;  // zero: one of its own, and alone in it
  std::uint32_t set_images = 1, set_index = 0;
  std::optional<std::uint64_t> time;  // of the contents, nanoseconds since 1970; without: now
  std::optional<secret_key> key;      // encrypts
  std::optional<signing_key> sign_with;

  // Reads all of it again before it takes its name. Costs about as long as reading takes.
  bool verify = true;
  bool past_page_cache = true;  // where the file system can
  unsigned threads = 0;         // 0: as many as there are processors, at most 8
  unsigned writes_at_once = 4;  // of each thread; each needs memory for a chunk, or two
  // Called now and then by one thread at a time; false: give up. Must not throw.
  std::function<bool(const write_progress &)> on_progress;
  file_calls *calls = nullptr;  // for tests; the system's
};

struct written {
  image_id image;
  sha256 root;
  std::uint64_t file_bytes = 0;
  std::uint64_t contents_bytes = 0;
  std::uint64_t stored_bytes = 0;  // in extents
  std::uint64_t chunks = 0;
  std::uint64_t zero_chunks = 0, same_chunks = 0, parent_chunks = 0, compressed_chunks = 0;
  bool past_page_cache = false;  // as it turned out
};

// Writes an image of `what`, whose contents are those of `from`.
// Ensures: the name leads to what it led to before, or to this image, whole, whenever the
//          process or the machine stops. Failure: as before, without a file left behind. (Where a
//          file system can neither exchange names nor be sure of them, an error of the last step
//          says so and the image is there.)
// Errors:  invalid_argument (a manifest that contradicts itself, options, a chain of 64 already,
//          replacing the image's own parent); std::errc::file_exists; no_space_on_device;
//          operation_canceled; the source's; corrupt (what was read back is not what was written);
//          out_of_memory; the system's.
// Memory:  threads * writes_at_once * chunk_bytes, twice that with compression or a key.
// Threads: safe; several writers of one name end with one of their images.
outcome<written> write(const std::string &path, const manifest &what, contents_source &from,
                       const write_options &options = {});

// Writes an image with the contents of `image` and no parent. Of `how`, the parent is not used; the
// time is the image's.
outcome<written> flatten(const reader &image, const std::string &path, write_options how = {});

}  // namespace stillmap::image
