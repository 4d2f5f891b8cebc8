// Limits the creation of physical memory. A page pool reserves quota before it creates a page and
// releases it after the page is released, so that memory in use never exceeds the reserved quota.
// A quota that several processes share can also ask the others for memory. docs/sharing.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

// What memory a holder gives back when others need it, in the order in which it is asked for.
enum class reclaim_kind : std::uint8_t {
  cached,     // free memory that its holder keeps for its next requests
  evictable,  // contents that are saved or dropped, and come back when they are next used
  task,       // all memory of a task, between two of its steps
};
inline constexpr std::size_t reclaim_kinds = 3;
inline constexpr std::uint64_t reclaim_later = UINT64_MAX;  // returned by a reclaimer

// Ends the registration of a reclaimer: the destructor returns once no call of it runs, unless it is
// called from that call. Outlives the quota, if it must.
class reclaimer_registration {
 public:
  virtual ~reclaimer_registration() = default;
};

// Threads: implementations are called from any thread that allocates or frees, and never while a lock
// of Stillmap's is held that they could need. They leave the thread's current context as it was.
class memory_quota {
 public:
  virtual ~memory_quota() = default;
  // Reserves all of `bytes`, without waiting for other holders. On failure the request for memory returns
  // the same error.
  virtual status reserve(std::uint64_t bytes) = 0;
  // A failure is a background error: the memory is released in any case.
  virtual status release(std::uint64_t bytes) = 0;
  // How many of `bytes` reserve() would give now: a hint, as others reserve, too. By default: all of them.
  virtual result<std::uint64_t> available(std::uint64_t bytes);

  // Asks other holders for memory and waits until `bytes` more are reserved for the calling thread, or a
  // time limit has passed. What the thread reserves until end_room() comes out of them, and what it
  // releases goes back to them. Called without any lock of the library's. On failure nothing has changed;
  // errc::busy: others hold the memory, and keep it. By default: not_supported, at once.
  virtual status make_room(std::uint64_t bytes);
  // Ends the latest room of the thread: releases what is not used of it. Without a room it does nothing.
  virtual void end_room() noexcept {}
  // `reclaim(bytes)` is called when others need memory: it releases at least `bytes` if it can, and returns how
  // many it has released. reclaim_later: it can release more once retry_reclaim() is called. It may run on any thread, and
  // must not throw. nullptr: this quota asks nobody. May throw std::bad_alloc.
  virtual std::unique_ptr<reclaimer_registration> add_reclaimer(
      reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim);
  // Calls the reclaimers of cached and evictable memory again for what was asked for and is not answered yet, because one
  // of them returned reclaim_later. Returns the bytes released. By default: 0.
  virtual result<std::uint64_t> retry_reclaim();
};

}  // namespace stillmap
