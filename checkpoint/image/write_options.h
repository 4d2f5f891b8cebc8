// How an image is written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/image/codec.h"
#include "stillmap/checkpoint/image/reader.h"

namespace stillmap::image {

enum class write_phase : std::uint8_t { contents, verifying };

struct write_progress {
  write_phase phase = write_phase::contents;
  std::uint64_t bytes = 0, total_bytes = 0;  // bytes of contents; verifying: stored bytes
  std::uint64_t stored = 0;                  // bytes written to the file so far
};

struct write_options {
  bool replace = false;  // replace an image of this name; false: that is an error
  // With `replace`: also an image that others in its folder, or in folders directly in that, name as
  // their parent. They cannot be read any more.
  bool force = false;
  codec compress = codec::none;   // for chunks that it makes smaller by at least an eighth
  bool share = true;              // store equal chunks once
  std::uint32_t chunk_bytes = 0;  // 0: the parent's, or 2 MiB
  // Writes an incremental image: chunks that the parent has are not stored again. Reading the image
  // needs the parent. Both are encrypted with the same key, or neither is.
  std::optional<reader> parent;
  // The set to which the image belongs; zero: a set of its own with one image.
  image_id set;
  std::uint32_t set_images = 1, set_index = 0;
  std::optional<std::uint64_t> time;  // of the contents, in ns since 1970 UTC; unset: now
  std::optional<secret_key> key;      // encrypts the image
  std::optional<signing_key> sign_with;

  // Reads the file back before it gets its name. Costs about as long as reading the image.
  bool verify = true;
  bool direct_io = true;     // bypass the page cache where the file system supports it
  unsigned threads = 0;      // 0: the number of processors, at most 8
  unsigned queue_depth = 4;  // writes in flight of each thread; each has one or two chunk buffers
  // Called from time to time by one thread at a time. Must not throw.
  std::function<void(const write_progress &)> on_progress;
  std::stop_token cancel;
  checkpoint::file_system *files = &checkpoint::file_system::system();
};

}  // namespace stillmap::image
