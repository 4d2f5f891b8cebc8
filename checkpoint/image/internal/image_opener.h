// Opens images, by their name or before they have one, and finds their parents.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/image/internal/open_image.h"
#include "stillmap/checkpoint/image/reader.h"

namespace stillmap::image {

class image_opener {
 public:
  explicit image_opener(const open_options &options) : options_(options) {}

  // Opens `name` in an open directory; `path` is what errors call it. `known_parent`: the parent,
  // where the caller has it open already.
  result<reader> open(int directory, const std::string &name, const std::string &path,
                      const std::shared_ptr<const open_image> &known_parent = nullptr);
  static const std::shared_ptr<const open_image> &image_of(const reader &r) { return r.image_; }

 private:
  result<std::shared_ptr<open_image>> open_file(
      int directory, const std::string &name, const std::string &path,
      const std::shared_ptr<const open_image> &known_parent);
  status read_metadata(open_image &image, int directory,
                       const std::shared_ptr<const open_image> &known_parent);
  status check_limits(const superblock &s);
  status check_canceled() const;
  status read_signature(open_image &image) const;
  result<std::vector<std::byte>> read_part(open_image &image, const char *where,
                                           const file_range &r, const sha256 &sum, nonce n) const;
  status read_seals(open_image &image) const;
  status find_parent(open_image &image, int directory);
  result<std::shared_ptr<open_image>> try_parent(const open_image &image, int directory,
                                                 const std::string &name, const std::string &path,
                                                 bool &replaced);

  const open_options &options_;
  unsigned depth_ = 0;
  std::uint64_t metadata_bytes_ = 0;  // of the chain so far
};

}  // namespace stillmap::image
