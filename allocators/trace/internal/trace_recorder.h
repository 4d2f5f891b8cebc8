// Records the requests of a running program to its allocators as a trace (trace.h). One file for
// all allocators of a process. Internal: users set caching_allocator_options::record_to or the
// environment variable STILLMAP_RECORD. docs/traces.md#recording
//
// Writes whole lines. A process that is killed loses the lines that were not flushed: those of the
// last quarter of a second, or those after its last request.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "stillmap/allocators/trace/trace.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// Threads: safe. One lock for all, because a trace has one order. Lock order: that of the open recorders >
//          a recorder's.
class trace_recorder {
 public:
  // The recorder of `path`, created once per process and open until the process ends. An existing
  // file is kept, and path.<pid> is written instead, because programs start other programs.
  // Errors: the system's (the file cannot be created).
  static result<std::shared_ptr<trace_recorder>> open(const std::string &path);
  // The recorder of the file that STILLMAP_RECORD names; nullptr if it is not set. A file that
  // cannot be created is a background error, and nothing is recorded.
  static std::shared_ptr<trace_recorder> from_environment();

  ~trace_recorder();
  trace_recorder(const trace_recorder &) = delete;
  trace_recorder &operator=(const trace_recorder &) = delete;

  // Call `allocated` after the allocation and `freed` before the free, so that no other thread has
  // the address meanwhile. Unknown blocks are ignored. `owner` identifies the allocator. A write
  // that fails, for example on a full disk, or host memory that runs out, is one background error and
  // ends the recording.
  // Cost: a lock and a line of text; a write about every 64 KiB or every quarter of a second.
  void allocated(const void *owner, const void *block, std::size_t bytes, int device, stream_ref s);
  void used(const void *block, int device, stream_ref s);
  void freed(const void *block);
  void iteration();
  // The owner is destroyed: frees its live blocks in the trace.
  void owner_destroyed(const void *owner);
  void flush();

  const std::string &path() const { return path_; }

 private:
  struct live_block {
    std::uint64_t id;
    const void *owner;
    std::uint32_t stream;
  };
  trace_recorder();
  void begin(int fd, std::string path);
  template <class Act>
  void record(Act act) noexcept;
  void end(error why) noexcept STILLMAP_REQUIRES(mutex_);
  std::uint32_t stream_number(int device, stream_ref s) STILLMAP_REQUIRES(mutex_);
  void flush_if_due() noexcept STILLMAP_REQUIRES(mutex_);
  void write_buffer() noexcept STILLMAP_REQUIRES(mutex_);

  const int process_;
  std::string path_;  // constant once open() has returned the recorder
  mutex mutex_;
  int fd_ STILLMAP_GUARDED_BY(mutex_) = -1;  // -1: recording has ended
  trace_writer text_ STILLMAP_GUARDED_BY(mutex_);
  std::uint64_t next_id_ STILLMAP_GUARDED_BY(mutex_) = 0;
  // Lines since the clock was read.
  unsigned lines_since_check_ STILLMAP_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point written_ STILLMAP_GUARDED_BY(mutex_);
  std::unordered_map<const void *, live_block> live_ STILLMAP_GUARDED_BY(mutex_);
  std::map<std::pair<int, stream_handle>, std::uint32_t> streams_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap
