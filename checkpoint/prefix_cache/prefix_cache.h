// A prefix cache that outlives its process: blocks or sequences of a KV arena and the keys by which an engine finds them,
// as one image, or handed off to another process. docs/kv_restart.md
#pragma once

#include <cstddef>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/block_arena.h"
#include "stillmap/allocators/kv/sequence_arena.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/checkpoint/image/reader.h"
#include "stillmap/checkpoint/image/writer.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::prefix_cache {

inline constexpr std::size_t max_key_bytes = 4096;
inline constexpr std::size_t max_table_bytes = std::size_t{16} << 20;  // of one handoff
// The name of the note that has the arena's shape and the entries.
inline constexpr const char *record_note = "stillmap.prefix_cache";
inline constexpr const char *sequence_record_note = "stillmap.prefix_cache.sequences";

// One entry of an engine's prefix table.
struct entry {
  kv::block_id block = 0;
  std::string key;  // any bytes: the engine's hash of the block's tokens and of all before them
  bool operator==(const entry &) const = default;
};
struct sequence_entry {
  kv::sequence_id sequence;
  std::size_t tokens = 0;  // of the sequence, from its beginning on
  std::string key;
  bool operator==(const sequence_entry &) const = default;
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
// The same of sequences. What they share is in the image once.
// Errors: invalid_argument (no such sequence, or named twice: value = its slot; more tokens than have memory: value, limit;
//         tokens that end in a page which another entry has, too: value), else those of the other.
result<image::written> save(const kv::sequence_arena &arena,
                            std::span<const sequence_entry> entries, const std::string &path,
                            const image::write_options &options = {});

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
// The same of sequences, which are live, and share what they shared; they have new ids. Fork them on a hit.
// Requires: the arena has no sequence. It has the shape, layout, number and longest of sequences and tag of the one that was
//           saved; its addresses may be others.
// Ensures:  failure: there is no sequence; some slots may have memory, which prepare() gives back.
// Errors:   as the other; busy (the arena has sequences: value; begin_step() is missing); those of
//           kv::sequence_arena::claim.
// Cost:     as kv::sequence_arena::claim, and one copy a chunk; the file is read twice.
result<std::vector<sequence_entry>> load(kv::sequence_arena &arena, const std::string &path,
                                         stream_ref stream, const load_options &options = {});

// Hands the memory of the arena off to another process of this machine, which has called handoff::receive(), together
// with the entries, in their order. The entries travel in memory of their own, with the tag table_tag(arena.tag()). What is
// free in the arena is given back first.
// Requires: as save(); the pool of the arena has exportable = posix_fd, and no other memory has the arena's tag. Blocks
//           that no entry names are lost.
// Ensures:  success: the arena has no memory any more, and can only be destroyed. Failure: it has all of its blocks.
// Errors:   as save() (a table over max_table_bytes: value, limit); busy (other memory has the tag: value = blocks of
//           addresses); those of kv::block_arena::trim and handoff::send.
// Threads:  as the arena.
// Stream:   waits for the device's work.
// Cost:     as handoff::send, and a page for the entries.
result<handoff::sent_memory> send(kv::block_arena &arena, std::span<const entry> entries,
                                  handoff::connection &to,
                                  const handoff::handoff_options &options = {});
// The same of sequences. Those that no entry names are lost.
result<handoff::sent_memory> send(kv::sequence_arena &arena,
                                  std::span<const sequence_entry> entries, handoff::connection &to,
                                  const handoff::handoff_options &options = {});
std::string table_tag(const std::string &arena_tag);

// Moves blocks that came so into an arena of this process, under their ids, as cached blocks, and returns the entries
// as they were sent. No byte is copied. What is free in the arena is given back first.
// Requires: as load(). `from` is what handoff::receive() returned, or memory restored otherwise with both tags.
// Ensures:  `from` is unchanged: destroy it, and what no block needs is released. Failure: no block is used or cached.
// Errors:   invalid_argument (another shape: detail().found = that of `from`, expected = the arena's; no prefix cache
//           with the arena's tag; another device), busy (the arena has blocks in use: value), corrupt (the entries
//           cannot be read, or name a block that is none, or twice), those of kv::block_arena::trim and adopt.
// Threads:  as the arena. Stream: waits for the device's work.
// Cost:     as kv::block_arena::adopt, and two copies to the host.
result<std::vector<entry>> adopt(kv::block_arena &arena, const checkpoint::restored_memory &from);
// The same of sequences. Requires, ensures: as load() of sequences. Errors, cost: as the other, of kv::sequence_arena.
result<std::vector<sequence_entry>> adopt(kv::sequence_arena &arena,
                                          const checkpoint::restored_memory &from);

}  // namespace stillmap::prefix_cache
