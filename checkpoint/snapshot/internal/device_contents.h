// The contents of an image, read from a device's memory. Internal.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "stillmap/checkpoint/common/internal/batch_copier.h"
#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/checkpoint/snapshot/internal/digest_prefetch.h"

namespace stillmap::snapshot {

// Threads: as the base says; as many copy at once as there are streams.
class device_contents final : public image::contents_source {
 public:
  // Errors: not_supported (a page that the device may not read: value = its address), the driver's.
  static result<std::unique_ptr<device_contents>> create(const device &d,
                                                         const checkpoint::memory_layout &l,
                                                         std::size_t streams);

  // From now on the device makes the digests of all chunks, and digest_of() waits for them. Where
  // it cannot tell, they are read.
  void learn_digests(const device &d, std::uint32_t chunk_bytes);

  image::outcome<image::bytes_view> chunk(std::uint64_t offset, std::span<std::byte> room) override;
  std::optional<image::digest> digest_of(std::uint64_t offset, std::size_t bytes) override;

 private:
  struct page {
    std::uint64_t offset;  // in the contents
    std::size_t bytes;
    device_address at;  // where the device may read it
  };
  struct looked_at {
    std::uint64_t offset;
    std::size_t bytes;
  };
  device_contents(checkpoint::transfer by, std::vector<page> pages);
  std::size_t take_stream();
  void give_back(std::size_t stream);

  checkpoint::transfer by_;
  const std::vector<page> pages_;
  std::mutex mutex_;
  std::condition_variable given_back_;
  std::vector<std::size_t> idle_;
  std::vector<looked_at> chunks_;  // in the order of the contents
  std::unique_ptr<digests_ahead> digests_;
};

}  // namespace stillmap::snapshot
