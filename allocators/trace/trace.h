// The trace format: the requests of a program to its allocators, as text. Reader and writer. The
// reader accepts a trace as a whole or rejects it with the line and the reason, so that no trace is
// replayed in part. docs/traces.md
//
//   # stillmap-trace v1          the first line; every other line that begins with # is a comment
//   a,<id>,<bytes>,<stream>      allocate
//   f,<id>                       free, on the stream that the block was allocated on
//   u,<id>,<stream>              work on another stream uses the block too
//   s,<from>,<to>                stream <to> waits for the work queued on <from>
//   i                            an iteration ends here, and the next one begins
//   o,<bytes>,<stream>,<held>,<device free>,<cached>,<pieces>,<largest>
//                                a request that failed in the recorded program: out of memory.
//                                trace_failure says what the other numbers are
//
// Numbers are decimal. An id names one block from its `a` to its `f`, and may be reused afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap {

enum class trace_verb : std::uint8_t { allocate, free, use, wait, iteration, fail };

// One line. Blocks are numbered from 0 in the order of their `a` lines; ids exist in files only.
struct trace_event {
  trace_verb verb = trace_verb::iteration;
  std::uint32_t stream = 0;  // allocate, use, fail; wait: the stream that is waited for
  std::uint32_t waits = 0;   // wait: the stream that waits
  std::uint64_t block = 0;   // allocate, free, use; fail: the index in trace::failures
  std::uint64_t bytes = 0;   // allocate, fail
  bool operator==(const trace_event &) const = default;
};

// The memory of the recorded program when a request failed, as its own allocator knew it. All zero
// where the recording does not say.
struct trace_failure {
  std::uint64_t held = 0;         // bytes of device memory that its allocator held
  std::uint64_t device_free = 0;  // bytes of device memory that nothing held
  std::uint64_t cached = 0;       // bytes of `held` that were in no block
  std::uint64_t pieces = 0;       // contiguous runs of those
  std::uint64_t largest = 0;      // bytes of the largest run
  bool operator==(const trace_failure &) const = default;
};

struct trace_totals {
  std::uint64_t blocks = 0;           // number of `a` lines
  std::uint64_t iterations = 0;       // number of `i` lines
  std::uint64_t peak_live_bytes = 0;  // of blocks, without requests that failed
  std::uint64_t live_bytes = 0;       // at the end
  std::uint64_t live_blocks = 0;      // at the end
  std::uint32_t streams = 0;          // the largest stream number, plus 1
};

struct trace {
  std::vector<trace_event> events;
  std::vector<trace_failure> failures;  // in the order of their events
  trace_totals totals;
};

// Limits of the format. A larger number is an error in the file.
inline constexpr std::uint64_t trace_max_bytes = std::uint64_t{1} << 48;  // of one block
inline constexpr std::uint32_t trace_max_streams = 4096;

// Parses a whole trace. Lines may end with CR LF; the last line may lack its end; empty lines are
// skipped.
// Errors: invalid_argument for the first malformed line: no header, another version, an unknown verb,
//         a missing, surplus or malformed number, an id that is live already, was freed or is
//         unknown, a size of 0 or over the limit, a stream over the limit, a stream that waits for
//         itself. out_of_memory (host memory). The detail's `where` is "line N", its `cause` quotes the line and says why.
// Cost:   one pass; memory for all events and for all ids that occur.
result<trace> read_trace(std::string_view text);

// Writes a trace line by line, in memory. It checks nothing; read_trace does. Throws std::bad_alloc
// where the host has no memory for a line, which is then left out.
// Threads: externally synchronised.
class trace_writer {
 public:
  explicit trace_writer(std::string_view comment = {});  // several lines become several comments

  void allocate(std::uint64_t id, std::uint64_t bytes, std::uint32_t stream);
  void free(std::uint64_t id);
  void use(std::uint64_t id, std::uint32_t stream);
  void wait(std::uint32_t from, std::uint32_t to);
  void iteration();
  void fail(std::uint64_t bytes, std::uint32_t stream, const trace_failure &of);
  void comment(std::string_view text);

  const std::string &text() const { return text_; }
  std::string take();              // returns the text and clears it
  void clear() { text_.clear(); }  // keeps the capacity

 private:
  void line(char verb, std::initializer_list<std::uint64_t> numbers);
  std::string text_;
};

// Formats a trace. The ids are the numbers of the blocks. Throws std::bad_alloc where the host has no
// memory for it.
std::string to_text(const trace &t, std::string_view comment = {});

}  // namespace stillmap
