// Suspends device memory: saves the contents of a tag, unmaps its pages and returns them to the
// device; resume brings them back at the same addresses. docs/suspend.md#suspend-and-resume
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

// Where the contents are kept while the memory is suspended.
enum class backing_store {
  pinned_host,  // fastest; needs as much page-locked host memory: asked before it is pinned
  file,         // an unnamed file, which ceases to exist with the process
  discard,      // nowhere: resumed memory has unspecified contents (for what can be recomputed)
};

struct suspend_options {
  backing_store store = backing_store::pinned_host;
  std::string directory;  // of the file; empty: $TMPDIR, else /tmp
  // Passes when all queued work on the memory is done. Without it, the host waits for the device,
  // while which no stream may capture a graph.
  std::optional<fence> idle;
  // Include memory that was imported from other processes, instead of refusing it. The import is
  // released, and resume creates a private copy.
  bool imports = false;
};

struct suspender_options {
  // Bytes of pinned memory to keep for the next suspension. Pinning takes longer than copying, and
  // cuMemFreeHost may wait for all work on the device.
  std::size_t keep_pinned = 0;
  // Copies in flight at once.
  std::size_t streams = 4;
};

struct suspended_tag {
  std::string tag;
  backing_store store = backing_store::pinned_host;
  std::size_t places = 0;  // addresses that pages were unmapped from
  std::size_t bytes = 0;   // of pages, each once
  physical_size released;  // memory that the device has free again
};

// Suspends and resumes tags of one device: memory of buffers, allocators and reservations, which
// have a tag in their options (buffer_options, caching_allocator_options, reservation_options).
//
// While a tag is suspended its addresses stay reserved, and access to them is a fault. Owners may be
// destroyed, may shrink (that memory does not come back) and may grow. Calls that need the suspended
// pages (alias, fork, splice), and requests to a suspended caching_allocator, fail with `busy`.
// Threads: safe, one call at a time. During a call no other thread may use or change the memory of
//          the tag, nor queue work on it. Another suspender, a snapshot, a handoff or a migration of
//          the same tag fails with `busy` meanwhile, and makes this one fail so.
class suspender {
 public:
  // Errors: invalid_argument (no streams), the driver's.
  // Cost:   one call for each stream.
  static result<std::unique_ptr<suspender>> create(const device &d, suspender_options options = {});
  // Contents that are still suspended are lost, and reported to the error sink. The owners of the
  // memory can still be destroyed.
  ~suspender();
  suspender(const suspender &) = delete;
  suspender &operator=(const suspender &) = delete;

  // Saves the contents, unmaps the pages, and releases them together with all other free pages of
  // their pools.
  // Requires: `options.idle` covers all work that is queued on the memory. No request to an allocator of the tag is in
  //           progress: later ones are refused, but one that has begun may return memory without pages.
  // Ensures:  failure: nothing changed; the memory stayed mapped.
  // Errors:   invalid_argument (no memory has this tag), busy (the tag is suspended already, or in
  //           another call; a page is also used outside of the tag: value = its address; a stream
  //           captures a graph), not_supported (memory of another process: value = its address; a
  //           device without VMM; pinned host memory on a device that shares the host's memory),
  //           out_of_memory (host
  //           memory: value = bytes, limit = bytes that are available, subject = the file that sets
  //           the limit), the system's for files, the driver's.
  // Stream:   host-synchronous.
  // Cost:     one unmap a contiguous run, one release a page, one copy for every 64 MiB of a run
  //           (file: 16 MiB), one pinned allocation unless enough was kept.
  result<suspended_tag> suspend(std::string_view tag, const suspend_options &options = {});

  // Creates pages and restores the contents at all addresses that are still suspended.
  // Ensures: failure: suspended as before; call it again when there is memory.
  // Errors:  invalid_argument (the tag is not suspended), out_of_memory (value = bytes that are
  //          needed), the driver's, the system's.
  // Stream:  host-synchronous.
  // Cost:    one create and one map a page, one set-access a contiguous run, and the copies.
  result<suspended_tag> resume(std::string_view tag);

  // Drops the contents of a suspended tag for good. Its memory does not come back: the addresses stay
  // without pages until growable_buffer::commit maps new ones there, with unspecified contents.
  // Errors: invalid_argument (the tag is not suspended).
  status forget(std::string_view tag);

  std::vector<suspended_tag> suspended() const;
  std::size_t pinned_kept() const;  // bytes
  void drop_pinned();

 private:
  class core;
  explicit suspender(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::checkpoint
