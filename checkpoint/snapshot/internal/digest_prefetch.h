// The digests of chunks, part after part, while the first ones are used already: what has changed
// is written while the device still looks at the rest. Internal.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/device.h"

namespace stillmap::snapshot {

// Threads: of() from any; one of its own makes the digests.
class digests_ahead {
 public:
  // Large beside what a launch and a wait cost, small beside what is worth looking at ahead.
  static constexpr std::size_t usual_part = std::size_t{512} << 20;

  // Begins with the first of `chunks`.
  // Requires: as chunk_digester::digests_of, until this is gone.
  // Cost:     of a digester, and of digests_of for each part, on the other thread.
  digests_ahead(const device &d, std::vector<virtual_range> chunks,
                std::size_t part_bytes = usual_part);
  // Waits for the part that is being looked at, not for the rest.
  ~digests_ahead();
  digests_ahead(const digests_ahead &) = delete;
  digests_ahead &operator=(const digests_ahead &) = delete;

  // Waits until chunk `i` has been looked at. Nothing: the device could not tell.
  std::optional<image::digest> of(std::size_t i);

 private:
  void run();
  std::size_t end_of_part(std::size_t first) const;

  const device device_;
  const std::vector<virtual_range> chunks_;
  const std::size_t part_bytes_;
  std::mutex mutex_;
  std::condition_variable progressed_;
  std::vector<image::digest> known_;  // of the first chunks
  bool over_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace stillmap::snapshot
