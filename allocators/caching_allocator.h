// Device memory by the block, for programs that allocate and free all the time. Freed memory is
// kept for the next request; where free memory lies in the wrong places, its pages are moved to
// where they are wanted, and no byte is copied. docs/design.md#the-caching-allocator
//
// Every stream has addresses of its own. A block freed on the stream it was allocated for is
// reusable there at once, since work is queued in order; pages go to another stream only behind an
// event. Blocks begin and end at multiples of 512 bytes.
//
// Where the device has no VMM the same interface stands on cuMemAlloc: memory comes and goes in
// whole chunks, and no page moves. docs/design.md#where-pages-cannot-be-mapped
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/allocators/heap_map.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/memory_quota.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

struct caching_allocator_options {
  std::size_t limit = SIZE_MAX;               // most bytes of physical memory it may hold
  std::size_t soft_limit = SIZE_MAX;          // beyond it, moving pages comes before creating them
  std::shared_ptr<memory_quota> quota{};      // asked before memory is got: shared_quota.h
  std::vector<int> peer_devices{};    // devices that may touch the blocks too
  std::shared_ptr<heap_observer> observer{};  // told of all that happens: heap_nvtx.h is one
  // Memory is short: frees some of its own and answers true to have the request of `bytes` tried
  // again, or false to let it fail. Called without any lock of the allocator, which it may use.
  std::function<bool(std::size_t bytes)> on_out_of_memory{};
  std::string tag = "caching_allocator";  // of its addresses, for what works by tag
  // For memory that another process is to have at the same addresses (docs/handoff.md): where they
  // would be welcome, elsewhere where that is taken; and how its pages can be exported.
  device_address hint{};
  handle_type exportable = handle_type::none;
  // A file to write every request to, as a trace (trace.h) that `stillmap replay` reads. Empty:
  // what the environment variable STILLMAP_RECORD names, if anything. A file that is there already
  // is kept, and path.<pid> written. Recorded: a lock and a line of text a request, for all
  // allocators of the process that write to the same file.
  std::string record_to{};
};

struct allocate_options {
  std::size_t alignment = 512;  // a power of two
  bool zero = false;            // all bytes zero, by work queued on the stream
};

// Bytes, unless the name says pages. live <= backed <= reserved.
struct arena_stats {
  std::uint64_t id = 0;
  std::uint64_t pool = 0;  // the private pool whose it is, or was before its release; 0: none
  stream_ref stream;
  std::size_t live = 0;  // handed out, rounded up to 512
  std::size_t live_peak = 0;
  std::size_t requested = 0;  // handed out, as asked for
  std::size_t blocks = 0;     // handed out
  std::size_t held = 0;       // freed, but other streams may still be using it
  std::size_t backed = 0;     // addresses with memory behind them
  std::size_t reserved = 0;   // addresses
  std::size_t lent = 0;       // addresses mapped to pages that are used at another address now
  std::size_t cached = 0;     // freed, and kept as it is for the same size
  std::size_t free_whole_pages = 0;  // bytes in pages without a byte of any block: could move
  std::size_t page_edges = 0;  // free bytes in pages that also have blocks: can only be reused
  std::uint64_t allocations = 0, frees = 0;
};

// Memory that captured graphs replay on. A value; what it names belongs to one allocator.
struct private_pool {
  std::uint64_t id = 0;
  constexpr bool operator==(const private_pool &) const = default;
};

struct caching_allocator_stats {
  arena_stats total;  // of everything below; live_peak: as seen when memory grew or was asked about
  std::vector<arena_stats> arenas;
  std::size_t backed_peak = 0;
  std::uint64_t growths = 0;         // times that memory had to be found for a request
  std::uint64_t pages_created = 0;   // got from the device's page pool
  std::uint64_t pages_moved = 0;     // taken from where they were free
  std::uint64_t pages_recalled = 0;  // of those, back where they were mapped already
  std::uint64_t pages_released = 0;
  std::uint64_t host_waits = 0;     // times the host waited for a stream
  std::uint64_t out_of_memory = 0;  // requests that failed for want of memory
  std::size_t host_bytes = 0;       // of the allocator's own books
};

// Threads: safe. Threads that use different streams do not wait for each other, except where
//          memory has to be found for one.
// Streams: those it was used with must exist for as long as the allocator does.
// Fork:    in a child of the process that made it, everything that would allocate, free or give
// back
//          is refused (not_supported), and its end gives nothing back.
class caching_allocator {
 public:
  // Errors: invalid_argument (a device in peer_devices is none: value; record_to cannot be
  //         made: value = errno), not_supported (another device in peer_devices, and this
  //         one has no VMM), the driver's. Cost: none of the driver's.
  static result<std::unique_ptr<caching_allocator>> create(const stillmap::device &d,
                                                           caching_allocator_options options = {});
  // Waits for the device and gives everything back. Blocks still handed out go with it.
  // Requires: no stream of the device captures.
  ~caching_allocator();
  caching_allocator(const caching_allocator &) = delete;
  caching_allocator &operator=(const caching_allocator &) = delete;

  // A block of at least `bytes` for work queued on `s` from now on; nullptr for zero bytes.
  // Errors: invalid_argument (alignment: value), out_of_memory (value = bytes, limit = what the
  //         device has free, or the allocator's limit), address_space_exhausted, device_lost.
  //         Nothing has changed then.
  // Cost:   none where the size was freed before; no driver call while memory that fits is free.
  result<void *> allocate(std::size_t bytes, stream_ref s = {}, allocate_options how = {});

  // Takes a block back; nullptr is no block. Without a stream: its last use was on the stream it
  // was allocated for (and those told by record_use).
  // Errors: invalid_argument (no block of this allocator begins there, or it was freed already).
  // Cost:   none; one fence for each other stream that used it (where that one captures a graph:
  //         later).
  status free(void *block);
  status free(void *block, stream_ref last_used_on);

  // The block is used by work queued on `s` too: once freed, its memory waits until what is queued
  // there at that moment has passed. Errors: as free.
  status record_use(void *block, stream_ref s);

  // ---- private pools: for the capture of CUDA graphs ----
  // A graph replays on the addresses it was captured with. While a stream is between begin and end,
  // its blocks come from addresses that are the pool's alone, and as long as the pool is held its
  // pages stay where they are, also when they are free: they are used again by what allocates to
  // the pool on the same stream, and by nobody else; trim leaves them alone.
  //   begin, begin the capture, allocate, launch, free, end the capture, end.
  // A later capture that begins on the same pool shares its memory: then its graphs must not run
  // at the same time. Without a pool, blocks that a graph uses must stay handed out.
  //
  // Whatever this allocator does while any stream captures, in whatever mode and on whatever
  // thread, spoils no capture (except its end, which waits for the device). Memory is found for a
  // stream that captures too: what is idle, what can be created, and last what the host waits for.
  //
  // Who makes a pool holds it; each retain is one more holder, as for a second graph.
  // Errors: of all: not_supported (in a forked child), invalid_argument (no such pool, or it was
  //         released: value = id). Nothing has changed then. Cost: none of the driver's unless
  //         said.
  result<private_pool> create_pool();
  status retain_pool(private_pool p);
  // One holder less. Of the last one: the graphs are not launched any more, and once what is queued
  // on `replayed_on` (the streams that any of them was launched on) and on the streams that
  // allocated to the pool has passed, its free pages are like all others; blocks that are still
  // handed out are freed as ever.
  // Errors: busy (the last holder, and a stream allocates to it). Cost: one fence for each stream.
  status release_pool(private_pool p, const std::vector<stream_ref> &replayed_on = {});
  // What `s` asks for is the pool's from now on, whoever calls; until end. For each stream that
  // takes part in a capture and allocates.
  // Errors: busy (the stream allocates to a pool already: limit = id of that one).
  // Cost:   where pools were released, at most two questions for each.
  status begin_allocate_to_pool(private_pool p, stream_ref s);
  // Errors: invalid_argument (the stream does not allocate to it: value = id).
  status end_allocate_to_pool(private_pool p, stream_ref s);

  // Gives all whole pages that are free back to the device, once the work queued on their streams
  // has passed; those of private pools, and of streams that capture, stay. Without VMM: all chunks
  // of which nothing is in use, and the host waits for it.
  // Ensures: what could not go stays.
  // Errors:  the driver's; busy (without VMM, while a stream captures a graph).
  status empty_cache();
  // The same, until at most `keep` bytes of whole free pages are left. Returns what was given back
  // (when work is queued: what will be).
  result<physical_size> trim(std::size_t keep);

  std::size_t limit() const;
  void set_limit(std::size_t bytes);  // below what is held: nothing is created until it is not
  void set_soft_limit(std::size_t bytes);

  bool owns(const void *address) const;  // within the addresses of this allocator
  // Errors: as free.
  result<std::size_t> usable_size(const void *block) const;

  // One moment of all arenas. Does not wait for a thread that is finding memory: what is on its way
  // between two of them is in neither.
  caching_allocator_stats stats() const;
  // The same, block by block. Waits for a thread that is finding memory.
  heap_map map() const;

  // Keeps the last `o.events` events from now on, and forgets those kept so far. Recording costs a
  // lock and two clock readings a request, and a walk of the stack where callers are wanted.
  // Errors: invalid_argument (no events; more events or callers than can be kept: value, limit),
  //         out_of_memory (the host's: value = bytes). Nothing has changed then.
  // Cost:   all memory it needs is taken here; not recording costs one predictable branch a
  // request.
  status record_history(history_options o = {});
  void stop_history();    // what is kept stays
  void forget_history();  // stops, and gives the memory back
  bool records_history() const;
  // A copy of what is kept; of a forked child's: not_supported. Errors: out_of_memory (the host's).
  result<allocation_history> history() const;

  const stillmap::device &device() const;

  // Where a trace is recorded: an iteration of the program ends here; otherwise nothing.
  void mark_iteration();

 private:
  class core;
  explicit caching_allocator(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap
