// Copies between device memory and host memory, on streams of its own, with several copies under
// way at once.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stillmap/checkpoint/common/internal/selection.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

enum class direction { to_host, to_device };

// Threads: externally synchronised.
class transfer {
 public:
  // Errors: the driver's. Cost: one call for each stream.
  static result<transfer> create(const device &d, std::size_t streams);

  std::size_t streams() const { return streams_.size(); }

  // Queues one copy on stream `on`; host memory must stay until wait(on).
  status start(direction way, virtual_range range, std::byte *host, std::size_t on);
  // Queues zeros.
  status clear(virtual_range range, std::size_t on);
  // Nothing is under way on it afterwards, also when it failed.
  status wait(std::size_t on);

  // All of `pieces`, each at its offset from `host`; over the streams, in parts of at most `part`
  // bytes. Host-synchronous. Errors: the driver's; nothing is under way then either.
  status copy(direction way, std::span<const piece> pieces, std::byte *host, std::size_t part);

 private:
  explicit transfer(const device &d) : device_(d) {}
  device device_;
  std::vector<stream> streams_;
};

// The same, in consecutive parts of at most `part_bytes`.
std::vector<piece> in_parts(std::span<const piece> pieces, std::size_t part_bytes);

}  // namespace stillmap::checkpoint
