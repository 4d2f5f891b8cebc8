// Key-value memory in blocks of tokens, as paged attention uses it: one tensor a layer whose addresses never change,
// of which only the blocks in use have memory. The arena gives out block ids so that sequences which end free whole
// pages. docs/kv_arena.md#blocks
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::kv {

class group_store;

using block_id = std::uint32_t;

struct block_arena_options {
  kv::shape shape{};
  std::size_t tokens_per_block = 16;
  std::size_t blocks = 0;              // the most there can be: addresses, not memory
  std::uint32_t layers_per_range = 0;  // 0: the rule of layout::create
  // Blocks in free page groups that keep their memory beyond what prepare() is asked for, so that a load that rises and
  // falls a little maps nothing.
  std::size_t spare_blocks = 0;
  std::shared_ptr<page_pool>
      pool{};  // empty: one of its own, which gives back what a step does not need
  std::string tag = "kv cache";  // for suspend, snapshots and reports
};

// Blocks that a step needs for one sequence.
struct growth {
  std::size_t blocks = 0;
  std::optional<block_id> after{};  // the sequence's last block; none where it begins
};

struct block_arena_stats {
  std::size_t used = 0, cached = 0;     // blocks
  std::size_t free = 0;                 // blocks with memory and without contents
  std::size_t mapped_bytes = 0;         // of the page groups with memory
  std::uint64_t steps = 0;              // begin_step()
  std::uint64_t steps_that_waited = 0;  // of these: the worker was not done
  std::uint64_t moved_blocks = 0;       // compact()
};

// Of the blocks that begin in one page group (one block, where a block is larger).
struct cell_occupancy {
  block_id first = 0;
  std::uint32_t blocks = 0, used = 0, cached = 0;
  bool has_memory = false;
};

struct block_move {
  block_id from = 0, to = 0;
};

// A block is free, used (it has references) or cached (it has contents that are worth keeping, and no reference).
// Threads: externally synchronised; the worker, which maps and unmaps, is synchronised internally.
// Streams: a block that was freed may be given out again at once, so its next use must be ordered after its last one:
//   one stream for all steps, or streams that the caller orders. Pages are taken away only after a fence.
// Failure: every operation leaves the arena as it was, unless it says otherwise.
class block_arena {
 public:
  // Errors: those of layout::create; invalid_argument (no blocks, or more than 2^32 - 2; a pool of another device),
  //         not_supported (the device has no virtual memory), address_space_exhausted.
  // Cost:   one reserve; no memory.
  static result<std::unique_ptr<block_arena>> create(const stillmap::device &d,
                                                     block_arena_options options);
  // Waits for the device's work.
  ~block_arena();
  block_arena(const block_arena &) = delete;
  block_arena &operator=(const block_arena &) = delete;

  // ---- addresses: constant for life ----------------------------------------------------------------

  const kv::layout &layout() const { return layout_; }
  // Block 0 of a tensor; block i is i * layout().block_stride() bytes further. Requires: layer < shape.layers,
  // tensor < shape.tensors.
  device_address tensor(std::uint32_t layer, std::uint32_t tensor) const;
  std::size_t blocks() const { return blocks_; }
  virtual_range range() const;
  const stillmap::device &device() const;
  const std::string &tag() const;
  // Rises whenever pages behind any address change: for those who register memory with a NIC.
  std::uint64_t generation() const;

  // ---- steps ---------------------------------------------------------------------------------------

  // The next step needs these blocks. The worker maps what is missing, and unmaps the page groups that are free beyond
  // that and beyond spare_blocks, once `stream` has done what is queued on it. Call it while the step before runs.
  // Each sequence gets page groups of its own, so that they are free when it ends; only where the device's memory is short
  // is what is free in those of others enough.
  // Errors: invalid_argument (a block `after` that is not used; the calling thread's default stream, which the worker
  //         cannot name), busy (suspended); of the host: a thread or memory that cannot be had. The wishes stay for the
  //         next call then.
  // Cost:   no driver call on this thread; where nothing is to do, no call at all.
  status prepare(std::span<const growth> growths, stream_ref stream);
  // The next step needs `free_blocks` blocks, wherever they are free, for an engine that does not know yet for which
  // sequences. These then share page groups, and hold them until all of them have ended.
  status prepare(std::size_t free_blocks, stream_ref stream);
  // Waits for the worker, if it is not done. What it mapped can be allocated from now on.
  // Errors: out_of_memory (fewer blocks are free than the latest prepare() was asked for: value = bytes that were to be
  //         mapped, limit = bytes that there were for them: they are mapped), busy (suspended), the driver's. The step may
  //         run with the blocks that there are.
  // Cost:   no driver call, no synchronisation of the device.
  status begin_step();

  // The worker has nothing to do, and begin_step() has said so: no page is mapped or unmapped until prepare().
  bool settled() const;

  // ---- blocks --------------------------------------------------------------------------------------

  // Fills `out` with free blocks that have memory, each with one reference. `after`: the block that the first one
  // continues; it is best the sequence's last. Those beside it come first, then free page groups, then what is free in
  // others.
  // Errors: out_of_memory (value = bytes of the blocks, limit = bytes of those that are free and have memory: prepare
  //         more, or free some), invalid_argument (`after` is not used).
  // Cost:   no driver call.
  status allocate(std::span<block_id> out, std::optional<block_id> after = std::nullopt);
  // Takes these blocks, which are free, wherever they are, and gives them memory: for contents that were saved under
  // their ids. Waits for the worker, as begin_step(). Each has one reference then.
  // Ensures: failure: none is taken; some may have memory, which prepare() gives back.
  // Errors:  invalid_argument (a block that is not free, or is named twice: value; the calling thread's default stream),
  //          busy (suspended), those of begin_step().
  // Stream:  as prepare(). Cost: as prepare() and begin_step().
  status claim(std::span<const block_id> blocks, stream_ref stream);
  // As claim(), with the pages that another process's arena had at the same places: no byte is copied. `from` is where
  // that one's range() is mapped here; the pages stay there, too, until their owner unmaps them.
  // Requires: the arena was of the same shape, layout and number of blocks, and had the blocks; device work on them is
  //           done.
  // Ensures:  failure: nothing changed.
  // Errors:   invalid_argument (as claim(); the page groups of the blocks are not mapped at `from` in whole pages), busy
  //           (the arena has memory at the place of a block: value = the block, trim() first; begin_step() is missing;
  //           suspended), the driver's, out_of_memory (of the host).
  // Cost:     one map a page, one set-access a range and run of page groups.
  status adopt(std::span<const block_id> blocks, device_address from);
  // One reference more to each block: it is used, or cached.
  // Errors: invalid_argument (a block that is free, or is none: value, limit = blocks()).
  status retain(std::span<const block_id> blocks);
  enum class contents { drop, keep };
  // One reference less. A block without references is free, or, with contents::keep, cached. Blocks of one call are equally
  // old for evict(): release the end of a prompt, which is to go first, in a call before that for its beginning.
  // Errors: invalid_argument (a block that is not used).
  status release(std::span<const block_id> blocks, contents then = contents::drop);
  // It is used or cached. False where there is no such block.
  bool has_contents(block_id b) const { return b < blocks_ && references_[b] != 0; }
  // Frees cached blocks. Errors: invalid_argument (a block that is not cached).
  status drop(std::span<const block_id> blocks);
  // Frees cached blocks, whole page groups at a time, those first that were used longest ago, until `blocks` are freed
  // or there are no more. It knows no prefixes: it may free a block before those that continue it. Appends them to `evicted`: the caller forgets what they held.
  // Errors: out_of_memory (of the host).
  status evict(std::size_t blocks, std::vector<block_id> &evicted);

  // ---- memory --------------------------------------------------------------------------------------

  // Bytes of device memory that are missing for `blocks` more blocks beside those that are used and cached: 0 where
  // prepare() of that many would succeed now, within the pool's limit and quota.
  // Errors: invalid_argument (more than there are), the driver's, the quota's.
  // Cost:   one query of the device's memory; with a quota, one memory_quota::available().
  result<std::size_t> missing_for(std::size_t blocks) const;
  // Moves blocks out of the cells with the fewest, where that frees a page group: at most `most` blocks. Copies on
  // `stream`; the blocks have their new ids, references and all, when it returns. The caller renames them in its tables.
  // Errors: the driver's, busy (suspended), out_of_memory (of the host).
  // Cost:   one copy per block and range, fewer where neighbours move together.
  result<std::vector<block_move>> compact(std::size_t most, stream_ref stream);
  // Waits for the device's work, unmaps all that is free, and gives it back to the device, or to a pool of the
  // caller's. Returns the bytes that the device got.
  // Errors: the driver's, busy (suspended); what was free may have no memory then, until prepare() asks for it.
  result<std::size_t> trim();
  // Gives `bytes` back to the device, as whole page groups, so long as there are any: free pages of the pool; free blocks
  // but `keep` of them; then, where `evicted` is given, cached blocks, those first that were used longest ago, which are
  // appended to it: the caller forgets what they held. Used blocks stay. Waits for the device's work, unless the pool has
  // enough. Returns the bytes that the pool released meanwhile.
  // Ensures: failure: what was evicted is in `evicted`; free blocks may have no memory, until prepare() asks for it.
  // Errors:  busy (begin_step() is missing; suspended), the driver's, out_of_memory (of the host: nothing is evicted).
  result<std::size_t> give_back(std::size_t bytes, std::size_t keep,
                                std::vector<block_id> *evicted = nullptr);

  // May throw std::bad_alloc.
  std::vector<cell_occupancy> occupancy() const;
  // Ranges of blocks with memory, in order: what may be registered. May throw std::bad_alloc.
  std::vector<std::pair<block_id, std::uint32_t>> committed_ranges() const;
  block_arena_stats stats() const;

 private:
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
  static constexpr std::uint32_t is_cached = none;  // in place of a count of references

  // The blocks that begin in one page group, or one block where it is larger: what gets memory together.
  struct cell {
    std::uint32_t used = 0, cached = 0;
    std::uint32_t next = none, previous = none;  // in a list of lists_
    std::uint32_t last_use = 0;
    bool wanted = false;  // it has memory, or the worker gives it some
    bool ready = false;   // its blocks may be given out
  };

  block_arena(kv::layout l, std::unique_ptr<group_store> store, const block_arena_options &options);

  std::uint32_t cell_of(block_id b) const;
  block_id first_block(std::uint32_t c) const;
  std::uint32_t blocks_of(std::uint32_t c) const { return first_block(c + 1) - first_block(c); }
  std::uint32_t free_blocks_of(std::uint32_t c) const {
    return blocks_of(c) - cells_[c].used - cells_[c].cached;
  }
  std::size_t list_of(std::uint32_t c) const;
  void link(std::uint32_t c);
  void unlink(std::uint32_t c);
  template <class Change>
  void change(std::uint32_t c, const Change &change);
  void add_memory(std::uint32_t c);
  std::size_t remove_memory(std::uint32_t c);
  std::size_t take_memory(std::uint32_t c);
  void evict_cell(std::uint32_t c, std::vector<block_id> &evicted);
  std::vector<std::uint32_t> cells_to_give(bool with_cached) const;
  std::uint32_t next_cell_without_memory();
  bool frees_memory(std::uint32_t c) const;
  void take_ready();
  status check_continued(std::optional<block_id> after) const;
  status prepare_cells(std::size_t blocks, std::size_t in_free_cells, stream_ref stream);
  std::uint32_t choose_cell(std::size_t wanted) const;
  std::size_t take(std::uint32_t c, std::span<block_id> out);
  status check(block_id b) const;
  status mark(std::span<const block_id> blocks);
  template <class Work>
  status give_memory(std::span<const block_id> blocks, const Work &work);
  void use(std::span<const block_id> blocks);
  status check_settled() const;
  status check_rests(std::span<const block_id> blocks) const;
  status copy(std::span<const block_move> moves, stream_ref stream) const;
  status release_one(block_id b, contents then);
  std::size_t block_total_bytes() const {
    return layout_.block_bytes() * layout_.shape().layers * layout_.shape().tensors;
  }

  const kv::layout layout_;
  const std::size_t blocks_;
  const std::size_t spare_blocks_;
  const std::unique_ptr<group_store> store_;
  std::vector<std::uint32_t> references_;  // of each block: 0 is free
  std::vector<cell> cells_;
  std::vector<std::uint16_t>
      needs_;  // of each page group: cells that are wanted and have bytes in it
  // Ready cells, by how many of their blocks are free; the last list has those of which all are.
  std::vector<std::uint32_t> lists_;
  std::vector<std::uint32_t> pending_;  // cells that the worker gives memory
  std::uint32_t lowest_unwanted_ = 0;   // no cell below has no memory
  std::size_t free_ready_ = 0, free_pending_ = 0;
  std::size_t free_whole_ = 0;  // of free_ready_: in cells without contents
  std::size_t needed_ = 0;      // blocks, by the latest prepare()
  std::uint32_t clock_ = 0;
  block_arena_stats stats_;
};

}  // namespace stillmap::kv
