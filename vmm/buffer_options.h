// Options and statistics of a growable_buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/vmm/base/units.h"

namespace stillmap {

class page_pool;

// Every member has an initialiser, so that {.reserve_bytes = n} compiles without a warning.
struct buffer_options {
  // Address space to reserve, in bytes; rounded up to pages. It is reserved, or create() fails. 0: as much
  // as the device has memory; less where many reservations share the addresses, or few are free, and at
  // least one page. Reserving costs no memory. Growing past it extends or moves the reservation, never
  // the data.
  std::size_t reserve_bytes = 0;
  // The name of the buffer's group, which is the unit of suspend and snapshot.
  std::string tag{};
  // Preferred address; another one is used where it is taken. Memory that another process restores at
  // the same address needs one far from the kernel's own placements.
  device_address hint{};

  // Peer devices that get read and write access, besides the device itself.
  std::vector<int> peer_devices{};

  // Sources of pages; default: the device's own pool. With n pools, page i comes from pool i mod n
  // (to stripe over devices, give one pool of each). All must have the same page size.
  std::vector<std::shared_ptr<page_pool>> pools{};

  // Bytes kept mapped beyond size() by a background thread, so that growing by less costs no driver
  // call. 0: none.
  std::size_t map_ahead_bytes = 0;

  // Use cuMemAlloc and copies even where VMM exists: to compare, and to test the fallback.
  bool force_copying = false;
};

// Counters of a buffer since its creation.
struct buffer_stats {
  std::uint64_t growths = 0;         // times pages were mapped at the end on demand
  std::uint64_t ahead_growths = 0;   // times pages were mapped ahead of need
  std::uint64_t relocations = 0;     // times data() changed
  std::uint64_t bytes_copied = 0;    // by this buffer to grow (fallback) or to unshare (fork)
  std::uint64_t ahead_failures = 0;  // failures to map ahead; the next resize maps itself
};

}  // namespace stillmap
