// Forges images: takes one apart, changes it, and reassembles it with valid digests.
#pragma once

#include <functional>
#include <vector>

#include "stillmap/checkpoint/image/chunk_table.h"
#include "stillmap/checkpoint/image/manifest.h"
#include "stillmap/checkpoint/image/superblock.h"

namespace stillmap::image {

struct forged {
  superblock head;
  std::vector<std::byte> extents;  // from the second block up to the table
  std::vector<chunk_record> table;
  digest_key key;
  std::vector<std::byte> what;  // the manifest, as FlatBuffers

  // Requires: the image is neither signed nor encrypted.
  static forged of(const std::vector<std::byte> &bytes);
  void set_manifest(const manifest &m);
  // Lays out extents, table and manifest and computes all digests. `last` may change the
  // superblock before its own digests are computed.
  std::vector<std::byte> bytes(const std::function<void(superblock &)> &last = {});
  // Recomputes the digests of a superblock.
  static void reseal(std::vector<std::byte> &bytes);
};

}  // namespace stillmap::image
