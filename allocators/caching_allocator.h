// A caching allocator for device memory, for programs that allocate and free all the time. It keeps
// freed memory for later requests. Where free memory is fragmented, it remaps whole free pages to
// the addresses that need them; it copies no data. docs/allocator.md
//
// Each stream has its own addresses (an arena). A block that is freed on the stream it was
// allocated for can be reused there at once, because a stream runs its work in order. Pages move to
// another stream only behind an event. Blocks begin and end at multiples of 512 bytes.
//
// Where the device has no virtual memory management (VMM) the same interface uses cuMemAlloc:
// memory is acquired and released in whole chunks, and no page moves.
// docs/allocator_growth.md#where-pages-cannot-be-mapped
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "stillmap/allocators/allocation_history.h"
#include "stillmap/allocators/allocator_types.h"
#include "stillmap/allocators/heap_map.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

class allocator_core;

// Threads: safe. Threads that use different streams do not wait for each other, unless one of them
//          needs more memory.
// Stream:  CU_STREAM_PER_THREAD is another stream for each thread that calls, and so is stream 0 of a
//          program built with --default-stream per-thread (stream_ref). Pages of such a stream go to
//          other threads behind an event on the legacy stream, which waits for all blocking streams.
//          Call forget_stream before a stream is destroyed. A stream that was destroyed without it is
//          found out where memory is short, by empty_cache and trim, and from time to time when new
//          streams come: the host then waits for the device, because the driver may still be
//          completing its work. CUDA leaves calls with a destroyed stream undefined, and reuses
//          handles at once: a new stream with the handle of a destroyed one that had work queued
//          gets memory that this work still uses. The default stream of a thread ends with it.
// Host memory: a call that runs out of it fails with out_of_memory, whose code then equals
//          std::errc::not_enough_memory, and changes nothing. free() of a block on its own stream, or on
//          those passed to record_use, needs none.
// Fork:    in a child of the process that created it, every call that can fail does, with not_supported; the others
//          do nothing and say nothing: stats() is empty. The destructor releases nothing. No call waits for a lock
//          that another thread may have held at the fork.
class caching_allocator {
 public:
  // Errors: invalid_argument (peer_devices names a device that cannot access this one: value is its
  //         ordinal; or record_to cannot be created: a std::system_category code),
  //         not_supported (peer_devices names another device, and this device has no VMM),
  //         the driver's.
  // Cost:   no driver call.
  static result<std::unique_ptr<caching_allocator>> create(const stillmap::device &d,
                                                           caching_allocator_options options = {});
  // Waits for the device and releases all memory, including blocks that are still allocated.
  // Requires: no stream of the device is capturing.
  ~caching_allocator();
  caching_allocator(const caching_allocator &) = delete;
  caching_allocator &operator=(const caching_allocator &) = delete;

  // Returns a block of at least `bytes` for work queued on `s` from now on; nullptr for 0 bytes.
  // Ensures: failure: nothing changed.
  // Errors:  invalid_argument (alignment: value, limit, in bytes), out_of_memory (value: bytes requested,
  //          limit: bytes the device has, or the allocator's limit), address_space_exhausted,
  //          device_lost, busy (memory of the allocator is suspended; frees go on).
  // Cost:    constant time and no driver call where a block of that size was freed before; no
  //          driver call while free memory fits.
  result<void *> allocate(std::size_t bytes, stream_ref s = {}, allocate_options options = {});

  // Frees a block; nullptr is ignored. Without a stream, the last use was on the stream that the
  // block was allocated for, and on the streams passed to record_use.
  // Errors: invalid_argument (no block of this allocator begins at that address, or it was freed
  //         already: value is the address).
  // Cost:   no driver call; one event for each other stream that used the block. While such a
  //         stream captures a graph, its event is recorded later.
  status free(void *block);
  status free(void *block, stream_ref last_used_on);

  // Records that work queued on `s` uses the block too. After the free, the memory is not reused
  // until the work that was queued on `s` at that moment has completed.
  // Errors: as free.
  status record_use(void *block, stream_ref s);

  // No more work that uses this allocator's memory is queued on `s`, which may now be destroyed, at
  // once and with work still queued. Its blocks stay allocated until they are freed. Its free memory,
  // and what is freed later, serves the next new stream, or any, behind the work queued so far. So does
  // memory of other streams that record_use, or release_pool, says is used on `s`; a new stream with the
  // same handle is another one.
  // Requires: no other thread frees a block that was used on `s` meanwhile; afterwards, no call names `s`.
  // Ensures: failure: nothing changed.
  // Errors:  busy (the stream allocates to a private pool: value is the id), not_supported (it is
  //          capturing, or the process was forked), the driver's.
  // Cost:    one event; no driver call for a stream that the allocator does not know. Looks at each block
  //          that record_use was called for and that is not free yet.
  status forget_stream(stream_ref s);

  // ---- private pools: memory for the capture of CUDA graphs ----
  //
  // A graph replays on the addresses it was captured with. Between begin_allocate_to_pool and
  // end_allocate_to_pool, all blocks of that stream come from addresses that belong to the pool.
  // While the pool exists its pages stay mapped, even when they are free: only later allocations to
  // the pool on the same stream reuse them, and trim does not release them.
  //
  // Order of calls: begin_allocate_to_pool, begin the capture, allocate, launch, free, end the
  // capture, end_allocate_to_pool.
  //
  // A later capture on the same pool shares its memory; graphs that share memory must not run at
  // the same time. Without a pool, blocks that a graph uses must stay allocated.
  //
  // No call of this allocator invalidates a capture in progress, in any capture mode and on any
  // thread, except the destructor, which waits for the device. So does the search for streams that were destroyed
  // without forget_stream, where some are found: captures of non-blocking streams that the allocator does not know
  // are invalidated then. A capture that another thread begins on a stream during a call for that same stream may
  // be, too: CUDA cannot be asked and told in one step. A capturing stream can allocate too:
  // the allocator then uses idle memory first, creates pages next, and waits on the host last.
  //
  // A pool is reference-counted: create_pool returns it with one reference, retain_pool adds one,
  // for example for a second graph.
  //
  // Errors: of all: not_supported (in a forked child), invalid_argument (no such pool, or it was
  //         released: value is the id). Failure: nothing changed.
  // Cost:   no driver call unless stated.
  result<private_pool> create_pool();
  status retain_pool(private_pool p);
  // Removes one reference. After the last one, the graphs must not be launched again. The pool's
  // free pages become ordinary free pages once the work queued on `replayed_on` (every stream that
  // any of the graphs was launched on) and on the streams that allocated to the pool has completed.
  // Blocks that are still allocated are freed as usual.
  // Errors: busy (the last reference, while a stream allocates to the pool: value is the id).
  // Cost:   one event for each stream.
  status release_pool(private_pool p, const std::vector<stream_ref> &replayed_on = {});
  // From now on, requests for `s` from any thread are served by the pool, until
  // end_allocate_to_pool. Call it for each stream that takes part in a capture and allocates.
  // Errors: busy (the stream allocates to a pool already: limit is the id of that pool).
  // Cost:   at most two queries for each released pool whose work may be pending.
  status begin_allocate_to_pool(private_pool p, stream_ref s);
  // Errors: invalid_argument (the stream does not allocate to the pool: value is the id).
  status end_allocate_to_pool(private_pool p, stream_ref s);

  // Releases all whole free pages to the device, once the work queued on their streams has
  // completed. Pages of private pools and of capturing streams stay. Without VMM: releases all
  // unused chunks; the host waits. Returns what was released, and what stayed and why.
  // Ensures: memory that cannot be released stays usable. While memory of the allocator is suspended, nothing is
  //          released.
  // Errors:  the driver's; busy (while a stream captures a graph: without VMM, or where pages are
  //          lent from stream to stream; what can be released is).
  result<release_report> empty_cache();
  // The same, until at most `keep` bytes of whole free pages are left.
  result<release_report> trim(std::size_t keep);

  std::size_t limit() const;
  // Sets caching_allocator_options::limit. A limit below the committed memory releases nothing; no
  // page is created until the committed memory is below it.
  void set_limit(std::size_t bytes);
  void set_soft_limit(std::size_t bytes);

  // Whether the address is in the address ranges of this allocator.
  bool owns(const void *address) const;
  // The size of an allocated block including rounding, in bytes.
  // Errors: as free.
  result<std::size_t> usable_size(const void *block) const;

  // The allocated block in which an address lies: where it begins, and its size as requested, in bytes.
  // Errors: invalid_argument (no allocated block of this allocator is there: value is the address).
  result<virtual_range> find_block(const void *address) const;

  // A consistent snapshot of all arenas. Does not wait for a thread that is growing the heap; pages
  // in transit between two arenas are counted in neither. Where the host has no memory for it, the
  // list of arenas is empty.
  caching_allocator_stats stats() const;
  // From here on the peaks in stats() are those since this call. Waits for a thread that is growing
  // the heap. How memory is placed and kept does not depend on it. Cost: no driver call.
  void reset_peaks();
  // The state of every address range. Waits for a thread that is growing the heap.
  // Errors: out_of_memory (host memory).
  result<heap_map> map() const;

  // Records the last `options.events` events from now on, and discards earlier ones.
  // Ensures: failure: nothing changed.
  // Errors:  invalid_argument (no events; more events or stack frames than supported: value,
  //          limit), out_of_memory (host memory: value, in bytes).
  // Cost:    allocates all host memory it needs here. While recording: one lock and two clock reads
  //          for each request, and a stack walk where stack_depth is not 0. While not recording:
  //          one predictable branch for each request.
  status record_history(history_options options = {});
  void stop_history();    // keeps the recorded events
  void forget_history();  // stops and frees the recorded events
  bool records_history() const;
  // Returns a copy of the recorded events.
  // Errors: out_of_memory (host memory).
  result<allocation_history> history() const;

  const stillmap::device &device() const;

  // A step of a program that shares its device: waits until so many bytes can be allocated, from free memory of this
  // allocator and of its quota, which asks the other holders for it. From then on until end_step() those bytes are
  // there, and the allocator gives nothing back to the others: no request of the step waits while it holds the
  // memory of others that wait. Steps do not nest; requests of the step are made by this thread.
  // Requires: the allocator has a quota that several processes share. Without one it returns at once.
  // Ensures:  failure: no step has begun.
  // Errors:   those of memory_quota::make_room.
  status begin_step(std::size_t bytes);
  // What the step has not used goes back, and what was asked for meanwhile.
  void end_step() noexcept;

  // Marks the end of an iteration in a recorded trace; without a trace it does nothing.
  void mark_iteration();

 private:
  static result<std::unique_ptr<caching_allocator>> make(const stillmap::device &d,
                                                         caching_allocator_options options);
  explicit caching_allocator(std::unique_ptr<allocator_core> c);
  std::unique_ptr<allocator_core> core_;
  std::unique_ptr<reclaimer_registration> reclaimer_;  // ends before what it calls
};

}  // namespace stillmap
