// The most recent events of a caching allocator, in a ring of fixed size.
// caching_allocator::record_history() starts recording, history() returns a copy.
// docs/heap_map.md#statistics-map-and-history
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/stream.h"

namespace stillmap {

struct history_options {
  std::size_t events = std::size_t{1} << 16;  // capacity of the ring, at most 2^26
  // Frames of the host's call stack that are kept with each event: 0 to 64. Each costs 8 bytes for
  // each event; more than 0 costs a stack walk for each request.
  unsigned stack_depth = 0;
};

enum class history_action : std::uint8_t {
  allocate,        // a block was allocated
  free_requested,  // the program freed a block
  free_completed,  // its memory is reusable: at once, or when other streams have passed their uses
  page_map,        // new pages were mapped
  page_move,       // pages moved from the address `from` to `address`
  page_unmap,      // pages were released to the device
  reserve,         // addresses were reserved for a stream
  out_of_memory,   // a request failed
  snapshot,        // map() was called
};
inline constexpr std::size_t history_actions = 9;
const char *name_of(history_action action);  // "allocate", ...

struct history_event {
  history_action action = history_action::snapshot;
  std::uint64_t time_ns = 0;  // since 1970; monotonic within one recording
  std::uint64_t address = 0;
  std::size_t bytes = 0;   // of a block: as requested
  std::size_t usable = 0;  // of a block: including rounding
  stream_ref stream;
  std::uint64_t from = 0;         // page_move: the old address
  std::size_t available = 0;      // out_of_memory: bytes that were available
  std::uint64_t first_frame = 0;  // index into allocation_history::frames, innermost frame first
  std::uint32_t frames = 0;       // number of frames
};

struct allocation_history {
  history_options options;
  std::uint64_t recorded = 0;         // events since recording began
  std::uint64_t lost = 0;             // the oldest of those, overwritten
  std::vector<history_event> events;  // oldest first
  std::vector<const void *> frames;   // return addresses; of each stack at most the first is ours

  std::span<const void *const> stack_of(const history_event &e) const {
    return std::span(frames).subspan(e.first_frame, e.frames);
  }
};

// Receives each event when it happens, whether or not history is recorded:
// caching_allocator_options::observer. Costs as much as recording, plus the observer's own work.
class heap_observer {
 public:
  virtual ~heap_observer() = default;
  // The time and the call stack of the event are not set. Events of one address arrive in order.
  // Returns false to receive no further events.
  // Requires: it calls no function of the allocator, whose locks may be held, and leaves the thread's
  //           current context as it was.
  // Threads:  any; concurrent calls.
  virtual bool on_event(const history_event &e) noexcept = 0;
};

// A return address in readable form.
struct stack_frame {
  std::string function;      // demangled; empty: no symbol
  std::string module;        // the file that the code was loaded from; empty: unknown
  std::uint64_t offset = 0;  // from the begin of the function, or of the module without a symbol
};
// Finds only names that the dynamic linker can see: those of shared libraries, and of programs
// linked with -rdynamic. Source lines are not available, nor names of modules unloaded since.
// Throws std::bad_alloc where the host has no memory for the names.
stack_frame describe_frame(const void *return_address);

}  // namespace stillmap
