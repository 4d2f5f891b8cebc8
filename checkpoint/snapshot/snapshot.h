// What tags of a device hold, saved as an image, and brought back at the same addresses: by this
// process or by another. docs/design.md#snapshots
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::snapshot {

struct save_options {
  image::write_options image;  // how it is written: compression, parent, keys, progress
  // All work on the memory has been queued, and this is when it has passed. Without: the host waits
  // for everything on the device.
  std::optional<fence> idle;
  std::vector<image::manifest::note> notes;  // the application's own, to be found again
};

// Writes an image of all memory that has one of these tags: buffers', allocators', mapped by hand.
// Requires: until it returns nobody changes the memory, its pages, or what is mapped.
// Ensures:  failure: no image, or the one that was there; the memory is untouched either way.
// Errors:   invalid_argument (nothing has one of the tags), busy (a page is used outside of the
//           tags: value = its address; or some of it is suspended), not_supported (another
//           process's memory; memory that other devices use too, or that this one may not read:
//           value = the address; a device without VMM), the driver's, and those of image::write.
// Threads:  safe.
// Cost:     one copy for each chunk, and what image::write says. With a parent: a module, two
//           copies and a launch a stream for each 512 MiB, one copy for each chunk that changed.
image::outcome<image::written> save(const device &d, std::span<const std::string> tags,
                                    const std::string &path, const save_options &how = {});

struct restore_progress {
  std::uint64_t bytes = 0, of_bytes = 0;  // of contents
};

struct restore_options {
  image::open_options image;      // how it is opened: parents, keys, limits
  std::vector<std::string> tags;  // only these; none: all there are
  // Somewhere else, when addresses are taken. Only for memory without pointers into itself: nothing
  // in it is changed.
  bool relocate = false;
  // How pages can be given to others, whatever the image says: to hand over what was not made for
  // it.
  std::optional<handle_type> exportable;
  std::size_t threads = 0;  // that read and copy; 0: as many as there are processors, at most 8
  // Called after each chunk by one thread at a time; false: give up. Must not throw.
  std::function<bool(const restore_progress &)> on_progress;
};

struct restored {
  checkpoint::restored_memory memory;
  std::vector<image::manifest::note> notes;
  // With relocate: where each block of memory.layout() was, in the same order as these are now.
  std::vector<virtual_range> was;
};

// Reserves the addresses, gets pages, reads and checks the contents, and maps them as they were.
// On another device than the image is of as well, if that has pages of that kind.
// Ensures: failure: nothing is reserved, mapped or created.
// Errors:  busy (an address is taken: the text says by whom), invalid_argument (the image has no
//          such tag), out_of_memory (value = bytes wanted, limit = bytes the device has free),
//          not_supported (pages of a size or kind that the device cannot make),
//          std::errc::operation_canceled, the driver's, and those of image::reader.
// Memory:  threads * chunk_bytes, pinned. Threads: safe.
// Cost:    one reserve a block, one create a page, one map a place, one copy a chunk.
image::outcome<restored> restore(const device &d, const std::string &path,
                                 const restore_options &how = {});
image::outcome<restored> restore(const device &d, const image::reader &image,
                                 const restore_options &how = {});

}  // namespace stillmap::snapshot
