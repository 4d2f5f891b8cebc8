// A prefix cache that survives a restart: blocks of a KV arena and the keys by which an engine finds them, as one
// image. docs/kv_restart.md
#pragma once

#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::prefix_cache {

inline constexpr std::size_t max_key_bytes = 4096;
// The name of the note that has the arena's shape and the entries.
inline constexpr const char *record_note = "stillmap.prefix_cache";

// One entry of an engine's prefix table.
struct entry {
  kv::block_id block = 0;
  std::string key;  // any bytes: the engine's hash of the block's tokens and of all before them
  bool operator==(const entry &) const = default;
};

// Writes an image of the pages that hold these blocks, with the entries in their order, which is that of the latest use:
// load() makes the first ones the first to be evicted.
// Requires: the blocks' contents are complete, and nothing changes them until it returns; begin_step() was called since
//           the latest prepare().
// Ensures:  the arena is unchanged. Failure: no image, or the one that was there before.
// Errors:   invalid_argument (a block that is free, or named twice: value; a key over max_key_bytes: value, limit; more
//           than a note can hold: value, limit), busy (begin_step() is missing, or the memory is suspended), those of
//           snapshot::save.
// Threads:  as the arena.
// Stream:   waits for the device's work.
// Cost:     as snapshot::save of the pages.
result<image::written> save(const kv::block_arena &arena, std::span<const entry> entries,
                            const std::string &path, const image::write_options &options = {});

struct load_options {
  image::open_options image;  // parents, keys, limits
  std::size_t threads = 0;    // read and copy; 0: the number of processors, at most 8
  std::stop_token cancel;     // until the first byte is written
};

// Brings the blocks of an image back under their ids, as cached blocks, and returns the entries as they were saved. The
// whole image is checked first.
// Requires: the arena has no block that is used or cached. It has the shape, layout, number of blocks and tag of the one
//           that was saved; its addresses may be others.
// Ensures:  failure: no block is used or cached; some may have memory, which prepare() gives back.
// Errors:   invalid_argument (another shape: detail().found = the image's, expected = the arena's; another tag; no
//           prefix cache), busy (the arena has blocks in use: value), corrupt (blocks and pages of the image contradict
//           each other), those of kv::block_arena::claim and snapshot::restore_contents.
// Threads:  as the arena.
// Stream:   as kv::block_arena::prepare; waits for the device's work.
// Cost:     as kv::block_arena::claim, and one copy a chunk; the file is read twice.
result<std::vector<entry>> load(kv::block_arena &arena, const std::string &path, stream_ref stream,
                                const load_options &options = {});

}  // namespace stillmap::prefix_cache
