// Options, statistics and handles of the caching allocator: plain values. caching_allocator.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/memory_quota.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

struct caching_allocator_options {
  // Upper bound on physical memory, in bytes. At most the hard limit of the process's control group (memory_limits.h).
  std::size_t limit = SIZE_MAX;
  // Above this many bytes, free pages are moved to a request before new pages are created. At most the group's soft
  // limit.
  std::size_t soft_limit = SIZE_MAX;
  // The unit in which memory is created, mapped and moved, in bytes: a power of two, from the
  // device's granularity (2 MiB) to largest_page. 0: the granularity. Larger pages make growth cost
  // fewer driver calls and less CPU time, and the allocator hold more memory, because a page with one
  // live block neither moves nor is released: docs/allocator_growth.md#page-size. Not used where the
  // device cannot map pages.
  std::size_t page_bytes = 0;
  static constexpr std::size_t largest_page = std::size_t{64} << 20;
  // While memory grows, a thread of the allocator's page pool keeps up to this many bytes of pages
  // created ahead of need, within `limit`, so that growing waits for no cuMemCreate (about 30 us for each
  // 2 MiB on an A100 or H100). What it costs: that much device memory beyond what is used, until
  // empty_cache or trim, and one thread. 0: no page is created ahead, and there is no thread.
  std::size_t create_ahead_bytes = 0;
  // Asked before physical memory is created. Where it has too little, its other holders are asked for memory, and the
  // request waits for them, before on_out_of_memory is called; and this allocator gives them cached memory when they
  // ask. shared_quota.h, docs/sharing.md
  std::shared_ptr<memory_quota> quota{};
  // Ordinals of other devices that may access the blocks.
  std::vector<int> peer_devices{};
  // Notified of every event: allocation_history.h. report/heap_nvtx.h is one.
  std::shared_ptr<heap_observer> observer{};
  // Called when a request of `bytes` would fail with out_of_memory. Returns true after it has freed
  // memory, to retry the request, or false to let it fail. Called without any lock of the
  // allocator; it may call the allocator. Must not throw.
  std::function<bool(std::size_t bytes)> on_out_of_memory{};
  // The tag of the allocator's addresses, for modules that select memory by tag.
  std::string tag = "caching_allocator";
  // The preferred base address; further reservations follow the first. Memory that another process
  // receives at the same addresses needs one (docs/handoff.md). The allocator uses other addresses
  // where these are taken.
  device_address hint{};
  // How other processes can import the pages.
  handle_type exportable = handle_type::none;
  // A file to which every request is written as a trace (trace/trace.h), for `stillmap trace
  // replay`. Empty: the file that the environment variable STILLMAP_RECORD names, if any. An
  // existing file is kept, and path.<pid> is written instead. Recording costs one lock and one line
  // of text for each request; all allocators of the process with the same file share them.
  std::string record_to{};
  // STILLMAP_RECORD counts: false for an allocator whose requests are not the program's own.
  bool record_from_environment = true;
};

struct allocate_options {
  static constexpr std::size_t largest_alignment = std::size_t{1} << 30;
  std::size_t alignment = 512;  // bytes, a power of two, at most largest_alignment (1 GiB)
  bool zero = false;            // sets all bytes to zero by work queued on the stream
};

// Statistics of one arena: the memory of one stream. Sizes in bytes. live <= committed <= reserved.
struct arena_stats {
  std::uint64_t id = 0;
  std::uint64_t pool = 0;  // the private pool that owns the arena, or did before release; 0: none
  stream_ref stream;
  std::size_t live = 0;       // allocated blocks, rounded up to 512
  std::size_t live_peak = 0;  // the largest `live` so far, or since reset_peaks()
  std::size_t requested = 0;  // allocated blocks, as requested
  std::size_t blocks = 0;     // number of allocated blocks
  // Freed blocks that queued work of other streams may still use.
  std::size_t pending_free = 0;
  std::size_t committed = 0;  // addresses with physical memory
  std::size_t reserved = 0;   // addresses
  // Addresses that stay mapped to pages in use at another address, of this arena or of another. Such
  // a page comes back without being mapped: within the arena without a driver call, from another
  // behind an event.
  std::size_t aliased = 0;
  std::size_t cached = 0;            // freed blocks kept whole for the next request of their size
  std::size_t free_whole_pages = 0;  // free bytes in pages without any block; these pages can move
  std::size_t page_edges = 0;        // free bytes in pages that also hold blocks
  std::uint64_t allocations = 0, frees = 0;
};

struct caching_allocator_stats {
  // Sums over all arenas. total.live_peak is sampled when memory grows and when statistics are
  // read.
  arena_stats total;
  std::vector<arena_stats> arenas;
  std::size_t page_bytes = 0;        // bytes of one of the pages that are counted below
  std::size_t committed_peak = 0;    // bytes
  std::size_t created_ahead = 0;     // bytes of pages that are ready for the next growth
  std::uint64_t growths = 0;         // requests that cached and free memory could not serve
  std::uint64_t pages_created = 0;   // pages acquired from the device
  std::uint64_t pages_moved = 0;     // free pages remapped to another address
  std::uint64_t pages_recalled = 0;  // moved pages that returned to an address still mapped to them
  std::uint64_t pages_released = 0;  // pages returned to the device
  std::uint64_t host_waits = 0;      // times the host waited for a stream
  std::uint64_t out_of_memory = 0;   // requests that failed for want of memory
  std::size_t host_bytes = 0;        // host memory of the allocator's own data structures
};

// What empty_cache and trim released, and the free memory that stayed, by the reason. Bytes.
struct release_report {
  std::size_t released = 0;       // now, or once the work queued so far has completed
  std::size_t kept = 0;           // whole free pages (chunks without VMM): as asked
  std::size_t private_pools = 0;  // of private pools that exist
  std::size_t capturing = 0;      // of streams that capture a graph
  std::size_t pending_free = 0;   // freed blocks that work of other streams may still use
  std::size_t page_edges = 0;     // in pages (chunks) that also hold blocks

  std::size_t stayed() const {
    return kept + private_pools + capturing + pending_free + page_edges;
  }
};

// Handle of a private pool: memory that captured graphs replay on. Belongs to one allocator.
struct private_pool {
  std::uint64_t id = 0;
  constexpr bool operator==(const private_pool &) const = default;
};

}  // namespace stillmap
