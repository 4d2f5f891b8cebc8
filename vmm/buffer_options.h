// Options and statistics of a growable_buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/units.h"

namespace stillmap {

class page_pool;

// Every member has an initialiser, so that {.reserve = n} compiles without a warning.
struct buffer_options {
  // Address space to reserve, in bytes; rounded up to pages. 0: as much as the device has memory.
  // Reserving costs no memory. Growing past it extends or moves the reservation, never the data.
  std::size_t reserve = 0;
  std::string tag{};  // name of the group it belongs to: the unit of suspend and snapshot
  // Where the addresses would be welcome; elsewhere where it is taken. For memory that another
  // process is to have at the same addresses: far from where the kernel puts things.
  device_address hint{};

  // Who may read and write besides the device itself: other devices that are peers.
  std::vector<int> peer_devices{};

  // Where pages come from; default: the device's own pool. Several: page i comes from pool
  // i mod n (striping over devices: one pool of each). All must have the same page size.
  std::vector<std::shared_ptr<page_pool>> pools{};

  // Bytes kept mapped beyond size() by a background thread, so that growing by less costs no driver
  // call. 0: none.
  std::size_t ahead = 0;

  // Use cuMemAlloc and copies even where VMM is there: for comparing, and for testing the fallback.
  bool force_copying = false;
};

// What happened to a buffer since it was made.
struct buffer_stats {
  std::uint64_t growths = 0;         // times pages were mapped at the end on demand
  std::uint64_t ahead_growths = 0;   // times they were mapped ahead of need
  std::uint64_t relocations = 0;     // times data() changed
  std::uint64_t bytes_copied = 0;    // by this buffer to grow (fallback) or to unshare (fork)
  std::uint64_t ahead_failures = 0;  // background growth refused; the next resize tries itself
};

}  // namespace stillmap
