// Appends a stream to a device_vector until it ends, and measures it. The same code grows in place
// and by copying; only the vector's options differ.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "stillmap/vmm/device_vector.h"
#include "tools/stillmap/common/progress.h"
#include "tools/stillmap/common/source.h"
#include "tools/stillmap/demo/check.h"
#include "tools/stillmap/map/picture.h"

namespace stillmap::tool {

using device_bytes = device_vector<std::byte>;

struct growth_run {
  observed seen;
  std::uint64_t peak_memory = 0;  // peak device memory of this run
  std::uint64_t mapped = 0;       // at the end
  double growing = 0;             // seconds in driver calls that grow
  double filling = 0;             // seconds copying from the host
  double reading = 0;             // seconds waiting for the source
  driver_counts calls;            // of the driver during the run
  bool digest_used = false;       // the source can be read only once: compared by its digest
  std::uint64_t digest = 0;
  std::vector<picture_step> history;
};

struct growth_limits {
  std::size_t chunk = std::size_t{16} << 20;
  std::uint64_t most = UINT64_MAX;  // bytes after which to stop
  bool silent = false;              // no progress
};

// Errors: the source's, the driver's (out of memory: with a hint to stop earlier).
outcome<growth_run> grow_from(byte_source &source, device_bytes &to, const growth_limits &limits,
                              const char *what);
// The same from another vector's content, through the host: for sources that can be read only once.
outcome<growth_run> grow_from(device_bytes &from, device_bytes &to, const growth_limits &limits,
                              const char *what);

// Reads all content back and compares it with the source, read again, or with its digest.
outcome<void> check_content(byte_source &source, device_bytes &of, const growth_limits &limits,
                            growth_run &run);

// The peak memory of growing to `bytes` in steps of `chunk` by doubling and copying.
std::uint64_t peak_of_copying(std::uint64_t bytes, std::uint64_t chunk);

}  // namespace stillmap::tool
