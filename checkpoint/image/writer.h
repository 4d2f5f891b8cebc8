// Writes images atomically: a file of the name is a whole image, or is not replaced.
// docs/image_format.md#writing
#pragma once

#include <string>

#include "stillmap/checkpoint/image/contents_source.h"
#include "stillmap/checkpoint/image/write_options.h"

namespace stillmap::image {

// What was written.
struct written {
  image_id image;
  sha256 root;
  std::uint64_t file_bytes = 0;
  std::uint64_t contents_bytes = 0;
  std::uint64_t stored_bytes = 0;  // in extents
  std::uint64_t chunks = 0;
  std::uint64_t zero_chunks = 0, same_chunks = 0, parent_chunks = 0, compressed_chunks = 0;
  bool direct_io = false;  // whether all writes bypassed the page cache
};

// Writes an image with this manifest, whose contents come from `from`.
// Ensures: whenever the process or the machine stops, the name leads to the file that it led to
//          before, or to the whole new image. Failure: the old state, without a temporary file.
//          (Where the file system can neither exchange names nor sync the directory, the last step
//          can fail with the new image in place; the error says so.)
// Errors:  invalid_argument (a manifest that contradicts itself, invalid options, a chain of 64
//          images already, replacing an ancestor of the image); busy (replacing, without `force`, the
//          parent of other images: detail().found; or the image of a set);
//          std::errc::no_such_file_or_directory (an ancestor was deleted or replaced meanwhile);
//          std::errc::file_exists;
//          no_space_on_device; operation_canceled; those of the source; corrupt (what was read back
//          differs from what was written); out_of_memory; errors of system calls.
// Memory:  threads * queue_depth * chunk_bytes; twice that with compression or encryption.
// Threads: safe; several writers of one name end with one of their images. Parents and children are
//          looked for again right before the image gets its name: of two processes, one that
//          replaces a parent and one that writes its child, one is refused, unless they get there in
//          the same instant.
result<written> write(const std::string &path, const manifest &what, contents_source &from,
                      const write_options &options = {});

// Writes an image with the contents of `image` and without a parent. `options.parent` is ignored;
// the time and chunk size are the image's unless given. It may replace `image`, not an ancestor of it.
result<written> flatten(const reader &image, const std::string &path, write_options options = {});

}  // namespace stillmap::image
