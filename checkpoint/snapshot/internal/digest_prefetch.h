// Computes the digests of chunks ahead of their use, in parts: changed chunks are written while the
// device still digests the rest.
#pragma once

#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// Threads: of() is safe. One thread of its own runs the digester.
class digest_prefetch {
 public:
  // Large enough to hide the cost of a launch and a wait, small enough to overlap with writing.
  static constexpr std::size_t default_part_bytes = std::size_t{512} << 20;

  // Starts with the first of `chunks`.
  // Requires: as chunk_digester::digests_of, until destroyed.
  // Cost:     a digester, and one digests_of for each part, on the other thread.
  digest_prefetch(const device &d, std::vector<virtual_range> chunks, const image::digest_key &key,
                  std::size_t part_bytes = default_part_bytes);
  digest_prefetch(const digest_prefetch &) = delete;
  digest_prefetch &operator=(const digest_prefetch &) = delete;

  // Waits for the digest of chunk `i`; nullopt: the device could not compute it.
  std::optional<image::digest> of(std::size_t i);

 private:
  void run(const std::stop_token &stop) noexcept;
  std::size_t end_of_part(std::size_t first) const;

  const device device_;
  const std::vector<virtual_range> chunks_;
  const image::digest_key key_;
  const std::size_t part_bytes_;
  mutex mutex_;
  condition_variable progressed_;
  std::vector<image::digest> known_ STILLMAP_GUARDED_BY(mutex_);  // of the first chunks
  bool over_ STILLMAP_GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // destroyed first: waits for the part in progress, not for the rest
};

}  // namespace stillmap::snapshot
