// Digests of chunks as an image stores them, made by the device from its own memory: how a snapshot
// knows what has changed without reading it. docs/design.md#snapshots. Internal.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// What digests are made with, kept for the next ones: loading the kernel may compile it. Waits for
// nobody else's work on the device, but where loading the kernel does: CUDA may synchronise the
// context for that (CUDA C++ Programming Guide, "Lazy Loading").
//
// Owner of a module, a few streams, and room on the device: 32 bytes a chunk and a few MiB, as much
// as was needed at most so far. Threads: externally synchronised; several at once are independent.
class chunk_digester {
 public:
  // Errors: not_supported (the device cannot run the kernel, the driver has no modules); the
  // driver's. Cost: one module, and up to 8 streams.
  static result<chunk_digester> create(const device &d);
  chunk_digester(chunk_digester &&) noexcept;
  chunk_digester &operator=(chunk_digester &&) noexcept;
  ~chunk_digester();

  // The digests of `chunks`, in their order.
  // Requires: chunks of at least 16 blocks of 4,096 bytes, whole ones, which the device may read;
  //           nothing writes to them meanwhile.
  // Errors: not_supported (a chunk is too small); the driver's.
  // Cost:   two copies, a launch for each stream, and waiting for each; pages when it needs more
  // room
  //         than ever.
  result<std::vector<image::digest>> digests_of(std::span<const virtual_range> chunks);

 private:
  class core;
  explicit chunk_digester(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

// Once: with a digester for this call.
result<std::vector<image::digest>> chunk_digests(const device &d,
                                                 std::span<const virtual_range> chunks);

}  // namespace stillmap::snapshot
