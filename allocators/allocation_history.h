// What a caching allocator did, event by event: the last so many, in a ring of fixed size.
// caching_allocator::record_history() begins, history() copies.
// docs/design.md#what-the-allocator-says-about-itself
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/stream.h"

namespace stillmap {

struct history_options {
  std::size_t events = std::size_t{1} << 16;  // how many are kept: at most 2^26
  // Callers on the host's stack that are kept with each event: 0 (none) to 64. Each costs 8 bytes
  // an event, and a walk of the stack at every request.
  unsigned stack_depth = 0;
};

enum class history_action : std::uint8_t {
  allocate,        // a block was handed out
  free_requested,  // the program gave it back
  free_completed,  // its memory is reusable: at once, or when other streams have passed
  page_map,        // addresses got memory that was created for them
  page_move,       // the same memory, at another address now: `from`
  page_unmap,      // addresses lost their memory to the device
  reserve,         // a stream got addresses to place its blocks in
  out_of_memory,   // a request failed
  snapshot,        // map() was called
};
inline constexpr std::size_t history_actions = 9;
const char *name_of(history_action action);  // "allocate", ...

struct history_event {
  history_action action = history_action::snapshot;
  std::uint64_t time_ns = 0;  // since 1970, on a clock that does not go back while it records
  std::uint64_t address = 0;
  std::size_t bytes = 0;   // of a block: as asked for
  std::size_t usable = 0;  // of a block: with rounding
  stream_ref stream;
  std::uint64_t from = 0;         // page_move: the old address
  std::size_t available = 0;      // out_of_memory: what could still be had
  std::uint64_t first_frame = 0;  // in allocation_history::frames, innermost first
  std::uint32_t frames = 0;
};

struct allocation_history {
  history_options options;
  std::uint64_t recorded = 0;         // since recording began
  std::uint64_t lost = 0;             // of those, the oldest, which are not here
  std::vector<history_event> events;  // oldest first
  std::vector<const void *> frames;   // return addresses

  std::span<const void *const> stack_of(const history_event &e) const {
    return std::span(frames).subspan(e.first_frame, e.frames);
  }
};

// Is told of each event when it happens, whether history is recorded or not:
// caching_allocator_options:: observer. Costs what recording costs, and what it does itself.
class heap_observer {
 public:
  virtual ~heap_observer() = default;
  // Of one address, events come in order. The event's time and callers are not set. False: it wants
  // to hear no more. Threads: any, several at once, some with locks of the allocator held, which it
  // must not call.
  virtual bool on_event(const history_event &e) noexcept = 0;
};

// One return address, for people.
struct stack_frame {
  std::string function;      // demangled; empty: the module has no symbol there
  std::string module;        // the file the code was loaded from; empty: unknown
  std::uint64_t offset = 0;  // from the function's begin, or from the module's where it has no name
};
// Only names that the dynamic linker can see are found: those of shared libraries, and of programs
// linked with -rdynamic; no source lines. A module that has been unloaded since has no names.
stack_frame describe_frame(const void *return_address);

}  // namespace stillmap
