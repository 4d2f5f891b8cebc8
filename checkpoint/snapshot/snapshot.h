// Saves the device memory of tags as an image, and restores it at the same addresses, in this
// process or another. docs/snapshots.md
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::snapshot {

struct save_options {
  image::write_options image;  // compression, parent, keys, progress, cancelling
  // Passes when the last work that uses the memory has finished. Unset: save() waits for everything
  // on the device.
  std::optional<fence> idle;
  std::vector<image::manifest::note> notes;  // data of the application, returned by restore()
  // Only pages that are mapped in these ranges, which are in address order; other pages of the tags are not in the image.
  // Unset: all.
  std::optional<std::vector<virtual_range>> within;
  // Of memory that another process published and this one attached, the image has references, which
  // restore() returns in memory.layout().published; or a copy, as of all other memory.
  checkpoint::published_memory_is published = checkpoint::published_memory_is::referred_to;
};

// The name of the note that has the references.
inline constexpr const char *published_note = "stillmap.published";

// Writes an image of all memory with one of these tags: buffers, allocators, manual mappings.
// Requires: until it returns, nothing changes the memory, its pages or its mappings, on other devices either.
// Ensures:  the memory is unchanged. The rights of other devices to access it are not in the image: the
//           owner of restored memory grants them again. Failure: no image, or the one that was there before.
// Errors:   invalid_argument (no memory has one of the tags), busy (a page is also used outside of
//           the tags, or some of the memory is suspended: value = its address), not_supported
//           (memory of another process, or that this device cannot read: value = the address; a
//           device without VMM), the driver's, and those of
//           image::write.
// Threads:  safe.
// Cost:     one copy for each chunk, and the cost of image::write. With a parent: a module, two
//           copies and a launch a stream for each 512 MiB, one copy for each chunk that changed.
result<image::written> save(const device &d, std::span<const std::string> tags,
                            const std::string &path, const save_options &options = {});

struct restore_progress {
  std::uint64_t bytes = 0, total_bytes = 0;  // bytes of contents
};

struct restore_options {
  image::open_options image;      // parents, keys, limits
  std::vector<std::string> tags;  // restore only these; empty: all
  // Use other addresses if the original ones are taken. Only for memory without pointers into
  // itself: contents are not adjusted.
  bool relocate = false;
  // Overrides the handle type of the image's pages, for memory that will be exported.
  std::optional<handle_type> exportable;
  std::size_t threads = 0;  // read and copy; 0: the number of processors, at most 8
  // Called after each chunk by one thread at a time. Must not throw.
  std::function<void(const restore_progress &)> on_progress;
  std::stop_token cancel;
};

struct restored {
  checkpoint::restored_memory memory;
  std::vector<image::manifest::note> notes;
  // With relocate: the original range of each block of memory.layout(), in the same order.
  std::vector<virtual_range> original_ranges;
};

// Reserves the addresses, creates pages, reads and checks the contents, and maps the pages as they
// were mapped. The device may be another one than the image's, if it can create such pages.
// Ensures: failure: nothing is reserved, mapped or created.
// Errors:  busy (an address is in use: value = the address, detail().found = the mapping there),
//          invalid_argument (the image has no such tag: detail().found), out_of_memory (value =
//          bytes needed, limit = the device's free bytes), not_supported (the device cannot create
//          pages of this size or kind), operation_canceled, the driver's, and those of
//          image::reader.
// Memory:  threads * chunk_bytes, pinned.
// Threads: safe.
// Cost:    one reserve a block, one create a page, one map a place, one copy a chunk.
result<restored> restore(const device &d, const std::string &path,
                         const restore_options &options = {});
result<restored> restore(const device &d, const image::reader &image,
                         const restore_options &options = {});

}  // namespace stillmap::snapshot
