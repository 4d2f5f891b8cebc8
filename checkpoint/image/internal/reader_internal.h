// What an open image is made of.
#pragma once

#include <mutex>

#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/internal/image_file.h"
#include "stillmap/checkpoint/image/internal/seal.h"
#include "stillmap/checkpoint/image/reader.h"

namespace stillmap::image {

// What one thread needs to read a chunk that is not read straight to where it goes.
struct chunk_scratch {
  compressor packer;
  aligned_memory stored;
  aligned_memory plain;
};

struct reader::core {
  std::string path;
  mutable image_file file;
  superblock head;
  image::manifest what;
  std::vector<chunk_record> table;
  std::vector<sha256> seals;           // of stored extents, in the order of the table
  std::vector<std::uint32_t> seal_of;  // by record; only of signed images
  std::optional<cipher> opened_with;
  std::optional<verifying_key> signer;
  std::shared_ptr<const core> parent;
  unsigned chain = 1;

  // Scratch is made once for each thread that reads at the same time, and kept.
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<chunk_scratch>> spare;

  core(std::string p, image_file f) : path(std::move(p)), file(std::move(f)) {}

  // The chunk that record `n` leads to, in this image or in a parent.
  struct leads_to {
    const core *image;
    std::size_t record;
  };
  leads_to resolve(std::size_t n) const;
  // Reads and checks record `n`, which is stored here or zero. `thorough`: also the digest that
  // only says again what another says.
  done load(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch, bool thorough) const;
  done load_checked(std::size_t n, std::span<std::byte> to, chunk_scratch &scratch,
                    bool thorough) const;

  std::unique_ptr<chunk_scratch> take_scratch() const;
  void give_scratch(std::unique_ptr<chunk_scratch> s) const;
};

// Opens images; also one that has not got its name yet.
class image_opener {
 public:
  using core = reader::core;
  explicit image_opener(const open_options &options) : options_(options) {}
  outcome<reader> open(int directory, const std::string &name, const std::string &path,
                       const std::shared_ptr<const core> &known_parent = nullptr);
  static const std::shared_ptr<const core> &core_of(const reader &r) { return r.core_; }

 private:
  outcome<std::shared_ptr<core>> open_core(int directory, const std::string &name,
                                           const std::string &path,
                                           const std::shared_ptr<const core> &known_parent);
  done check_limits(const superblock &s) const;
  done read_signature(core &c) const;
  outcome<std::vector<std::byte>> read_part(core &c, part p, const file_range &r, const sha256 &sum,
                                            nonce n) const;
  done read_seals(core &c) const;
  done find_parent(core &c, int directory);
  outcome<std::shared_ptr<core>> try_parent(const core &c, int directory, const std::string &name,
                                            const std::string &path, bool &replaced);

  const open_options &options_;
  unsigned depth_ = 0;
};

}  // namespace stillmap::image
