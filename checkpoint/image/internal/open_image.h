// An open image file with its checked metadata, and the reading and checking of its chunks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::image {

// Buffers with which one thread reads a chunk that is not read directly to its destination.
struct chunk_scratch {
  compressor packer;
  checkpoint::aligned_memory stored;
  checkpoint::aligned_memory plain;
};

// Threads: safe once opened.
struct open_image {
  std::string path;
  mutable checkpoint::block_file file;
  image::superblock superblock;
  image::manifest manifest;
  std::vector<chunk_record> table;
  digest_key key;                      // of the contents' digests
  std::vector<sha256> seals;           // of stored extents, in the order of the table
  std::vector<std::uint32_t> seal_of;  // by record; only of signed images
  std::optional<cipher> decrypt_with;
  std::optional<verifying_key> signer;
  std::shared_ptr<const open_image> parent;
  unsigned chain = 1;

  // Scratch is made once for each concurrent reader, and kept.
  mutable stillmap::mutex mutex;
  mutable std::vector<std::unique_ptr<chunk_scratch>> spare STILLMAP_GUARDED_BY(mutex);

  open_image(std::string p, checkpoint::block_file f) : path(std::move(p)), file(std::move(f)) {
    spare.reserve(16);  // so that returning scratch allocates nothing
  }

  // The record that holds the data of record `n`, in this image or in a parent.
  struct source {
    const open_image *image;
    std::size_t record;
  };
  source resolve(std::size_t n) const;

  // Reads and checks record `n`, whose kind is zero or which is stored in this image. `thorough`
  // also checks the digest of contents that are stored as they are: that of the stored bytes, which
  // takes less time, implies it.
  // Ensures: failure: `to` is zeros, and the error names the file.
  status load(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch, bool thorough) const;

  std::unique_ptr<chunk_scratch> take_scratch() const;
  void return_scratch(std::unique_ptr<chunk_scratch> s) const;

 private:
  status load_checked(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                      bool thorough) const;
};

}  // namespace stillmap::image
