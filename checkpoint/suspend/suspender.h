// Takes the memory of a tag away from a task, and gives it back later at the same addresses: the
// device's memory is free for somebody else in between. docs/design.md#suspend-and-resume
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::checkpoint {

enum class keep_in {
  pinned_memory,  // fastest; needs as much host memory, which cannot be swapped
  file,           // in a nameless file, which is gone with the process
  nothing,        // contents are dropped: what comes back is unspecified (weights to be read again)
};

struct suspend_options {
  keep_in contents = keep_in::pinned_memory;
  std::string directory;  // for the file; empty: $TMPDIR, else /tmp
  // All work on the memory has been queued, and this is when it has passed. Without: the host waits
  // for everything on the device.
  std::optional<fence> idle;
  // Memory of other processes too, instead of refusing it: their memory is let go of, and what
  // comes back is a copy that is this process's own.
  bool imports = false;
};

struct suspender_options {
  // Pinned memory is kept for the next suspension instead of returned, up to this much: pinning
  // takes longer than copying, and returning it waits for all work on the device where the driver's
  // cuMemFreeHost does (hostcuda's does; of a GPU bench/cost_table tells).
  std::size_t keep_pinned = 0;
  // Copies under way at once.
  std::size_t streams = 4;
};

struct suspended_tag {
  std::string tag;
  keep_in contents = keep_in::pinned_memory;
  std::size_t places = 0;  // addresses that pages were taken from
  std::size_t bytes = 0;   // of pages, each once
  physical_size released;  // what the device really got back
};

// Suspends tags of one device. Buffers' and allocators' memory alike: whatever the ledger has under
// the tag (buffer_options::tag, reservation_options::tag, caching_allocator_options::tag).
//
// Between suspend and resume the addresses stay their owners' and touching them is a fault. Owners
// may be destroyed, may give memory up (it then does not come back) and may grow; what needs the
// pages themselves (alias, fork, splice) is refused as busy.
// Threads: safe, one call at a time. While a call runs, nobody else may use or change the memory of
//          that tag, nor queue work on it.
class suspender {
 public:
  // Errors: invalid_argument (no streams), the driver's. Cost: one call for each stream.
  static result<std::unique_ptr<suspender>> create(const device &d, suspender_options options = {});
  // What is suspended then is lost, which is reported to the error sink; its owners can still go.
  ~suspender();
  suspender(const suspender &) = delete;
  suspender &operator=(const suspender &) = delete;

  // Saves the contents, takes the pages away, and gives them back to the device (with all else that
  // lies free in the same pools).
  // Requires: no work is queued on the memory that `idle` does not cover.
  // Ensures:  failure: as before, and the memory was never away.
  // Errors:   invalid_argument (no memory has this tag), busy (suspended already; or a page is used
  //           outside of the tag as well: value = its address), not_supported (memory of another
  //           process; a device without VMM), out_of_memory (the host's, for pinned memory),
  //           the system's for files, the driver's.
  // Cost:     one unmap a contiguous run, one release a page, one copy for every 64 MiB of a run
  //           (file: 16 MiB); one pinned allocation, or none where enough was kept.
  result<suspended_tag> suspend(std::string_view tag, const suspend_options &how = {});

  // Gives the tag its memory and contents back, at the addresses that still want it.
  // Ensures: failure: suspended as before; try again, when there is memory.
  // Errors:  invalid_argument (the tag is not suspended), out_of_memory (value = bytes wanted),
  //          the driver's, the system's.
  // Cost:    one create and one map a page, one set-access a contiguous run, and the copies.
  result<suspended_tag> resume(std::string_view tag);

  // Gives up the contents of a suspended tag; its memory does not come back.
  // Errors: invalid_argument (the tag is not suspended).
  status forget(std::string_view tag);

  std::vector<suspended_tag> suspended() const;
  std::size_t pinned_kept() const;  // bytes, for the next suspension
  void drop_pinned();

 private:
  class core;
  explicit suspender(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::checkpoint
