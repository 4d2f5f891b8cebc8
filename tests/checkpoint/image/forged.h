// An image taken apart, changed and put together again with digests that are right: what somebody
// would write who means it.
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
  std::vector<std::byte> what;  // the manifest, as FlatBuffers

  // Of an image that is neither signed nor encrypted.
  static forged of(const std::vector<std::byte> &bytes);
  void set_manifest(const manifest &m);
  // Puts extents, table and manifest where they belong, and makes all digests. `last` may change
  // the superblock before those of it are made.
  std::vector<std::byte> bytes(const std::function<void(superblock &)> &last = {});
  // Makes the digests of a superblock right again.
  static void reseal(std::vector<std::byte> &bytes);
};

}  // namespace stillmap::image
