// Writes the contents of an image into memory that this process has mapped at the image's addresses:
// of a program that was started again, or that goes back to an earlier state. docs/snapshots.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/snapshot/snapshot.h"

namespace stillmap::snapshot {

struct restore_contents_options {
  image::open_options image;      // parents, keys, limits
  std::vector<std::string> tags;  // restore only these; empty: all
  // Where the memory of an image with one block begins here. Unset: at the image's addresses.
  std::optional<device_address> moved_to;
  // Reads and checks the whole image before anything is written, so that a damaged one changes nothing.
  bool verify = true;
  // Passes when the last work that uses the memory has finished. Unset: waits for everything on the
  // device.
  std::optional<fence> idle;
  std::size_t threads = 0;  // read and copy; 0: the number of processors, at most 8
  // Called after each chunk that was written by one thread at a time. Must not throw.
  std::function<void(const restore_progress &)> on_progress;
  std::stop_token cancel;  // until the first byte is written
};

struct restored_contents {
  image::image_id image;
  std::uint64_t pages = 0;  // that were written, each once
  std::uint64_t bytes = 0;
};

// Whether each place of the image's memory is mapped here as it was when it was saved: at the same
// address, with the same tag, in pages of the same size that are shared by the same places, where
// the device may write. Reads no contents and changes nothing.
// Errors:  invalid_argument (the image has no such tag; a place is not mapped, has another tag, page
//          size or sharing, or published memory is not attached: value = the first such address),
//          busy (it is suspended: value = the address), not_supported (memory of another process, or
//          that the device may not write, or published memory of which this process has private
//          copies: value = the address; a device without VMM).
// Threads: safe.
// Cost:    no driver call.
status check_mapped_as_saved(const device &d, const image::reader &from,
                             std::span<const std::string> tags = {});

// Writes the contents of the image at its addresses, where check_mapped_as_saved() succeeds. A page
// that is mapped at several addresses is written once.
// Requires: until it returns, nothing uses or changes the memory, its pages or its mappings, on other
//           devices either.
// Ensures:  the memory of the image has the image's contents. Whole pages are written: what an
//           allocator has placed in them since is overwritten. What is mapped here beyond the
//           image, and published memory, stay as they are.
//           Failure: nothing changed. But where the driver, the host's memory or the file failed after
//           the first byte was written, the contents of the image's pages are unspecified, and their
//           mappings unchanged: detail().cause says so. Call it again, or restore another image.
// Errors:   those of check_mapped_as_saved(); invalid_argument (`moved_to`, and the image has not one block: value = how
//           many); busy (a page is also used outside of the image's
//           places, where its contents would change: value = the address; another call has one of the
//           tags), operation_canceled, the driver's, and those of image::reader.
// Memory:   threads * chunk_bytes, pinned.
// Threads:  safe.
// Stream:   host-synchronous.
// Cost:     one copy a chunk; with `verify` the file is read twice.
result<restored_contents> restore_contents(const device &d, const std::string &path,
                                           const restore_contents_options &options = {});
result<restored_contents> restore_contents(const device &d, const image::reader &image,
                                           const restore_contents_options &options = {});

}  // namespace stillmap::snapshot
