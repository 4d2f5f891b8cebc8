// The interface of replayed allocators; one small class implements it for each of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/allocators/report/heap_report.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::replay {

// Requires: the device's context is current during every call.
// Threads:  one.
class replay_target {
 public:
  virtual ~replay_target() = default;  // releases all memory

  // At least `bytes` (not 0) for work on `on`.
  // Errors: out_of_memory: also when the limit is reached; the driver's.
  virtual result<void *> allocate(std::size_t bytes, stream_ref on) = 0;
  // Work queued before this call, on the stream of the allocation and on recorded streams, may
  // still access the block.
  virtual status free(void *at) = 0;
  // Work on the stream `on` accesses the block, too.
  virtual status record_use(void *at, stream_ref on) = 0;

  // Committed device memory by its own count: now, and the peak.
  virtual std::uint64_t committed_bytes() const = 0;
  virtual std::uint64_t peak_committed_bytes() const = 0;

  // Bytes of pages that were moved to other addresses so far.
  virtual std::uint64_t moved_bytes() const { return 0; }
  // Bytes of host memory for its books; none: not known.
  virtual std::optional<std::uint64_t> host_bytes() const { return std::nullopt; }
  // Requests that were tried again after all cached memory was released; none: not known.
  virtual std::optional<std::uint64_t> retries() const { return std::nullopt; }
  // A map of its memory; none: not available.
  virtual std::optional<heap_snapshot> snapshot() const { return std::nullopt; }
};

struct target_options {
  std::uint64_t limit = UINT64_MAX;  // bytes of device memory it may commit, if it has a limit
  bool wait_before_free = false;     // direct: see direct_target.cpp
  bool history = false;              // remember requests, where it can, for snapshot()
  std::size_t page_bytes = 0;        // stillmap: caching_allocator_options::page_bytes
  // stillmap: STILLMAP_RECORD counts for it, as for an allocator of the program's own.
  bool record_from_environment = false;
  // segments, as the settings of PyTorch's allocator with these names; 0: not set.
  std::uint64_t max_split_size = 0;            // bytes; larger blocks are not split
  std::uint32_t roundup_power2_divisions = 0;  // a power of two
};

struct target_kind {
  const char *name;
  const char *what;  // one clause, for --help
  bool has_limit;    // honours target_options::limit by itself
  result<std::unique_ptr<replay_target>> (*make)(const device &, const target_options &);
  bool own_calls = false;  // calls the driver by itself: only the simulator counts its calls
};

// The environment variable that names the library of `torch`: what tools/torch_peer/build makes.
inline constexpr const char *torch_peer_variable = "STILLMAP_TORCH_PEER";

// All allocators, in the order in which they are listed.
const std::vector<target_kind> &target_kinds();
// Errors: invalid_argument, listing the known names.
result<const target_kind *> find_target(std::string_view name);

result<std::unique_ptr<replay_target>> make_stillmap(const device &d, const target_options &o);
result<std::unique_ptr<replay_target>> make_direct(const device &d, const target_options &o);
result<std::unique_ptr<replay_target>> make_pool(const device &d, const target_options &o);
result<std::unique_ptr<replay_target>> make_segments(const device &d, const target_options &o);
result<std::unique_ptr<replay_target>> make_expanding_segments(const device &d,
                                                               const target_options &o);
result<std::unique_ptr<replay_target>> make_torch(const device &d, const target_options &o);
result<std::unique_ptr<replay_target>> make_torch_expanding(const device &d,
                                                            const target_options &o);

// Counts committed bytes and their peak.
class held_bytes {
 public:
  explicit held_bytes(std::uint64_t limit) : limit_(limit) {}
  bool fits(std::uint64_t more) const { return more <= limit_ - now_; }
  void add(std::uint64_t bytes) {
    now_ += bytes;
    if (now_ > peak_) peak_ = now_;
  }
  void drop(std::uint64_t bytes) { now_ -= bytes; }
  std::uint64_t now() const { return now_; }
  std::uint64_t peak() const { return peak_; }
  std::uint64_t limit() const { return limit_; }

 private:
  std::uint64_t limit_, now_ = 0, peak_ = 0;
};

}  // namespace stillmap::replay
