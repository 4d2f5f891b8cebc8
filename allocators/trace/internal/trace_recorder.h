// Writes down what a running program asks of its allocators, as a trace (trace.h) that can be
// replayed. One file for all allocators of a process. Internal:
// caching_allocator_options::record_to and the environment variable STILLMAP_RECORD are the way in.
// docs/traces.md#recording
//
// What is written is whole lines. Whoever is killed loses what was not yet flushed: at most a
// quarter of a second of requests, or what came after the last one.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/error.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Threads: safe; one lock for all, since a trace has one order.
class trace_recorder {
 public:
  // The recorder of `path`, which is made once per process and stays open until it ends. A file
  // that is there already is left alone, and path.<pid> is written instead: programs start others.
  // Errors: invalid_argument (value = errno: the file cannot be made).
  static result<std::shared_ptr<trace_recorder>> open(const std::string &path);
  // What STILLMAP_RECORD names; nullptr: nothing. A file that cannot be made is reported
  // (report_background_error) and nothing is recorded.
  static std::shared_ptr<trace_recorder> from_environment();

  ~trace_recorder();
  trace_recorder(const trace_recorder &) = delete;
  trace_recorder &operator=(const trace_recorder &) = delete;

  // Call `allocated` after the block was got and `freed` before it is given back: then nobody else
  // can have got its address in between. Blocks that are not known are passed over. `owner` tells
  // the allocators apart. None of these fail: when the file cannot be written any more (a full
  // disk), that is reported once and recording ends.
  // Cost: a lock, a line of text; a write of the file about every 64 KiB or quarter of a second.
  void allocated(const void *owner, const void *block, std::size_t bytes, int device, stream_ref s);
  void used(const void *block, int device, stream_ref s);
  void freed(const void *block);
  void iteration();
  // The owner is gone, and with it its blocks.
  void owner_destroyed(const void *owner);
  void flush();

  const std::string &path() const { return path_; }

 private:
  struct live_block {
    std::uint64_t id;
    const void *owner;
    std::uint32_t stream;
  };
  trace_recorder(int fd, std::string path);
  std::uint32_t number_of(int device, stream_ref s);  // requires mutex_
  void wrote();                                       // requires mutex_
  void write_out();                                   // requires mutex_

  std::mutex mutex_;
  int fd_;  // -1: recording has ended
  const int process_;
  const std::string path_;
  trace_writer text_;
  std::uint64_t next_id_ = 0;
  unsigned since_look_ = 0;  // lines since the clock was looked at
  std::chrono::steady_clock::time_point written_;
  std::unordered_map<const void *, live_block> live_;
  std::map<std::pair<int, stream_handle>, std::uint32_t> streams_;
};

}  // namespace stillmap
