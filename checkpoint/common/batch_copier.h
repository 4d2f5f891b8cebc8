// Copies between device memory and host memory on several streams at once.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/selection.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

enum class direction { to_host, to_device };

// Owner of its streams. Threads: externally synchronised.
class batch_copier {
 public:
  // Errors: the driver's. Cost: one call for each stream.
  static result<batch_copier> create(const device &d, std::size_t streams);

  std::size_t streams() const { return streams_.size(); }

  // Queues one copy on stream number `stream`. The host memory must live until wait() returns.
  status start(direction way, virtual_range range, std::byte *host, std::size_t stream);
  // Queues a memset to zero.
  status clear(virtual_range range, std::size_t stream);
  // Waits for the stream. Afterwards no copy is in flight on it, also on failure.
  status wait(std::size_t stream);

  // Copies all `pieces`, each at its offset from `host`, in parts of at most `part_bytes` that are
  // distributed over the streams.
  // Ensures: no copy is in flight afterwards, also on failure.
  // Errors:  the driver's.
  // Stream:  host-synchronous.
  status copy(direction way, std::span<const piece> pieces, std::byte *host,
              std::size_t part_bytes);

 private:
  explicit batch_copier(const device &d) : device_(d) {}
  device device_;
  std::vector<stream> streams_;
};

// Consecutive parts, of at most `part_bytes`, of some pieces. Allocates nothing: contents can be
// loaded where the host has no memory left. Threads: externally synchronised.
class part_sequence {
 public:
  part_sequence(std::span<const piece> pieces, std::size_t part_bytes)
      : pieces_(pieces), part_bytes_(part_bytes) {}
  // Nullopt: there are no more.
  std::optional<piece> next();
  // The number of parts of the whole sequence.
  std::size_t size() const;

 private:
  std::span<const piece> pieces_;  // the first is the one to continue with
  std::size_t part_bytes_;
  std::size_t done_ = 0;  // bytes of the first piece
};

}  // namespace stillmap::checkpoint
