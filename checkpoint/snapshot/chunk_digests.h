// Computes the digests of chunks on the device, as images store them (image::digest_of_contents). Incremental snapshots compare
// them to find the chunks that changed without copying the memory. docs/snapshots.md
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// Owns a module, streams and device memory (32 bytes a chunk; the largest amount needed so far). Keep it for repeated use: loading the kernel may compile it. Does not wait for
// other work on the device, except that loading the kernel may synchronise the context (CUDA C++
// Programming Guide, "Lazy Loading").
// Threads: externally synchronised; several objects are independent.
class chunk_digester {
 public:
  // Errors: not_supported (the device cannot run the kernel, the driver has no modules); the
  // driver's. Cost: one module, and up to 8 streams.
  static result<chunk_digester> create(const device &d, const image::digest_key &key);
  chunk_digester(chunk_digester &&) noexcept;
  chunk_digester &operator=(chunk_digester &&) noexcept;
  ~chunk_digester();

  // The digests of `chunks`, in their order.
  // Requires: chunks of whole blocks of 4,096 bytes, at multiples of 16, which the device can read;
  //           nothing writes to them meanwhile.
  // Errors:   not_supported (a chunk of another size, or at another address); the driver's.
  // Cost:     two copies, a launch and a wait for each stream; new pages if more memory is needed
  //           than before.
  result<std::vector<image::digest>> digests_of(std::span<const virtual_range> chunks);

 private:
  class core;
  explicit chunk_digester(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::snapshot
