// Reads the contents of an image from device memory.
#pragma once

#include <memory>
#include <vector>

#include "stillmap/checkpoint/common/batch_copier.h"
#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/checkpoint/snapshot/internal/digest_prefetch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::snapshot {

// Threads: as image::contents_source; as many copies run at once as there are streams.
class device_contents final : public image::contents_source {
 public:
  // Errors: not_supported (a page that the device cannot read: value = its address), the driver's.
  static result<std::unique_ptr<device_contents>> create(const device &d,
                                                         const checkpoint::memory_layout &l,
                                                         std::size_t streams);

  // Starts computing the digests of all chunks on the device, for digest_of(). Chunks whose digest
  // the device cannot compute are read instead.
  void prefetch_digests(const device &d, std::uint32_t chunk_bytes, const image::digest_key &key);

  result<image::bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override;
  std::optional<image::digest> digest_of(std::uint64_t offset, std::size_t bytes) override;

 private:
  struct page {
    std::uint64_t offset;  // in the contents
    std::size_t bytes;
    device_address at;  // an address that the device can read
  };
  struct chunk_range {
    std::uint64_t offset;
    std::size_t bytes;
  };
  device_contents(checkpoint::batch_copier copier, std::vector<page> pages);
  std::size_t take_stream();
  void return_stream(std::size_t stream);

  checkpoint::batch_copier copier_;
  const std::vector<page> pages_;
  mutex mutex_;
  condition_variable stream_returned_;
  std::vector<std::size_t> idle_ STILLMAP_GUARDED_BY(mutex_);
  std::vector<chunk_range> chunks_;  // in the order of the contents
  std::unique_ptr<digest_prefetch> digests_;
};

}  // namespace stillmap::snapshot
