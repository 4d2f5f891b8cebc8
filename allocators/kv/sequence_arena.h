// Key-value memory in which each sequence is one contiguous range of addresses in each tensor, and grows in place.
// Sequences with a common beginning have the same pages there. docs/kv_arena.md#sequences
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::kv {

class group_store;

// Of one arena; never used again for another sequence.
struct sequence_id {
  std::uint32_t slot = 0, serial = 0;
  bool operator==(const sequence_id &) const = default;
};

struct sequence_arena_options {
  kv::shape shape{};
  std::size_t longest = 0;             // tokens of a sequence, at most: addresses, not memory
  std::size_t sequences = 0;           // the most at once
  std::uint32_t layers_per_range = 0;  // 0: the rule of layout::create
  // Bytes of memory of removed sequences that are kept for new ones, which then map nothing.
  std::size_t spare_bytes = 0;
  std::shared_ptr<page_pool>
      pool{};  // empty: one of its own, which gives back what a step does not need
  std::string tag = "kv cache";  // for suspend, snapshots and reports
};

// Where a sequence lies whose contents were saved, and what it shares with one before it in a list.
struct sequence_place {
  std::uint32_t slot = 0;  // sequence_id::slot
  std::size_t tokens = 0;
  std::uint32_t shared = 0;  // page groups at its beginning that are also those of:
  std::uint32_t with = 0;    // the index of that one in the list
  bool operator==(const sequence_place &) const = default;
};

struct sequence_arena_stats {
  std::size_t sequences = 0;
  std::size_t mapped_bytes = 0;         // of addresses with memory
  std::size_t memory_bytes = 0;         // of their pages: what sequences share counts once
  std::size_t spare_bytes = 0;          // part of both: of removed sequences
  std::uint64_t steps = 0;              // begin_step()
  std::uint64_t steps_that_waited = 0;  // of these: the worker was not done
  std::uint64_t copied_groups = 0;      // page groups that forks have copied a part of
};

// Threads: externally synchronised; the worker, which maps and unmaps, is synchronised internally.
// Streams: memory of a removed sequence may be another's at once, so that one's first use must be ordered after this one's
//   last: one stream for all steps, or streams that the caller orders. Pages are taken away only after a fence.
// Failure: every operation leaves the arena as it was, unless it says otherwise.
class sequence_arena {
 public:
  // Errors: those of layout::create; invalid_argument (no sequences or tokens, or too many; a pool of another device),
  //         not_supported (the device has no virtual memory), address_space_exhausted.
  // Cost:   one reserve, of twice the addresses that the sequences need; no memory.
  static result<std::unique_ptr<sequence_arena>> create(const stillmap::device &d,
                                                        sequence_arena_options options);
  // Waits for the device's work.
  ~sequence_arena();
  sequence_arena(const sequence_arena &) = delete;
  sequence_arena &operator=(const sequence_arena &) = delete;

  // ---- addresses -----------------------------------------------------------------------------------

  const kv::layout &layout() const { return layout_; }  // of blocks of one token
  // The sequence's first token in a tensor; token i is i * layout().block_stride() bytes further. Constant for the
  // sequence's life. Requires: the sequence exists, layer < shape.layers, tensor < shape.tensors.
  device_address tensor(sequence_id s, std::uint32_t layer, std::uint32_t tensor) const;
  virtual_range range() const;
  std::size_t longest() const { return longest_; }
  std::size_t sequences() const { return sequences_; }  // the most at once
  const stillmap::device &device() const;
  const std::string &tag() const;
  // Rises whenever pages behind any address change.
  std::uint64_t generation() const;

  // ---- steps ---------------------------------------------------------------------------------------

  // The worker maps what reserve() and fork() asked for, and unmaps what is no longer needed once `stream` has done what is
  // queued on it. Call it while the step before runs.
  // Errors: invalid_argument (the calling thread's default stream, which the worker cannot name), busy (suspended); of the
  //         host: a thread or memory that cannot be had. The wishes stay for the next call then.
  // Cost:   no driver call on this thread; where nothing is to do, no call at all.
  status prepare(stream_ref stream);
  // Waits for the worker, if it is not done; capacity() says what each sequence has got. Wishes that came after the
  // latest prepare() wait for the next. Then queues the copies of forks on `stream`. A fork that has not got all its
  // tokens keeps what capacity() says, and gets no more: remove it and fork again.
  // Errors: out_of_memory (value = bytes that were to be mapped, limit = bytes that there were for them: they are
  //         mapped), busy (suspended), the driver's.
  // Cost:   no driver call and no synchronisation of the device, but for one copy per range and fork.
  status begin_step(stream_ref stream);
  // The worker has nothing to do, and begin_step() has said so: no page is mapped or unmapped until prepare().
  bool settled() const;

  // ---- sequences -----------------------------------------------------------------------------------

  // A sequence without memory, or with that of a removed one, of which prepare() gives back what the sequence has not
  // reserved by then.
  // Errors: address_space_exhausted (as many as there can be: limit; or as many were removed since the last step).
  result<sequence_id> add();
  // The next step needs memory for `tokens` tokens. Less than there is changes nothing.
  // Errors: invalid_argument (over the longest: value, limit; no such sequence), busy (a fork that has not got all its
  //         tokens).
  status reserve(sequence_id s, std::size_t tokens);
  bool has(sequence_id s) const;
  // Tokens that have memory now: a step may read and write them. 0 where there is no such sequence.
  std::size_t capacity(sequence_id s) const;
  // The sequence needs memory for `tokens` tokens only.
  // Errors: busy (it shares the page that the last of them is in: fork() it and remove it; it was forked or has grown
  //         since the last step: begin one), invalid_argument (no such sequence).
  status release_beyond(sequence_id s, std::size_t tokens);
  // A sequence with the first `tokens` tokens of `of`, which neither may write from now on. Full pages are shared; the
  // rest, which is less than one page group, is copied by begin_step(), which orders it after what was queued before.
  // Errors: as add(); invalid_argument (`of` has no memory for as many tokens: value, limit = capacity).
  result<sequence_id> fork(sequence_id of, std::size_t tokens);
  // Errors: invalid_argument (no such sequence).
  status remove(sequence_id s);
  // Makes these sequences in their old slots, with memory for their tokens, and shares what they share: for contents that
  // were saved. Waits for the worker and for the device's work.
  // Requires: the arena has no sequence.
  // Ensures:  success: the ids, in their order. Failure: the arena has no sequence; some slots may have memory, which
  //           prepare() gives back.
  // Errors:   invalid_argument (what check() finds; the calling thread's default stream), busy (there are sequences: value;
  //           begin_step() is missing; suspended), the driver's, out_of_memory (as begin_step(); of the host).
  // Cost:     as trim(), two times prepare() and begin_step().
  result<std::vector<sequence_id>> claim(std::span<const sequence_place> places, stream_ref stream);
  // As claim(), with the pages that another process's arena had at the same places: no byte is copied. `from` is where
  // that one's range() is mapped here; the pages stay there, too, until their owner unmaps them.
  // Requires: the arena was of the same shape, layout and number of sequences; device work on them is done.
  // Errors:   as claim(); invalid_argument (no whole pages are mapped at `from` in the places).
  // Cost:     one map a page, one set-access a range and run of page groups.
  result<std::vector<sequence_id>> adopt(std::span<const sequence_place> places,
                                         device_address from);
  // Whether there can be such sequences at once. May throw std::bad_alloc.
  // Errors: invalid_argument (more sequences than there can be: value, limit; a slot that is none, or is named twice; over
  //         the longest: value, limit; pages that one of the two does not fill, or of a sequence that does not come before:
  //         value = the slot).
  status check(std::span<const sequence_place> places) const;

  // ---- memory --------------------------------------------------------------------------------------

  // Bytes of device memory that are missing for a new sequence of `tokens` tokens: 0 where it can be had now, within the
  // pool's limit and quota. Errors: invalid_argument (over the longest), the driver's, the quota's.
  // Cost:   one query of the device's memory; with a quota, one memory_quota::available().
  result<std::size_t> missing_for(std::size_t tokens) const;
  // Waits for the device's work, unmaps what removed sequences have left, and gives it back to the device, or to a pool
  // of the caller's. Returns the bytes that the device got.
  // Errors: the driver's, busy (suspended).
  result<std::size_t> trim();
  // Gives `bytes` back to the device, as whole page groups, so long as there are any: free pages of the pool; memory of
  // removed sequences; then sequences of `cached`, in this order, are removed, and appended to `removed`. Pages that they
  // share with others stay. Waits for the device's work, unless the pool has enough. Returns the bytes that the pool released
  // meanwhile.
  // Ensures: failure: what was removed is in `removed`.
  // Errors:  invalid_argument (no such sequence), busy (begin_step() is missing; suspended), the driver's, out_of_memory
  //          (of the host: nothing is removed).
  result<std::size_t> give_back(std::size_t bytes, std::span<const sequence_id> cached,
                                std::vector<sequence_id> &removed);

  sequence_arena_stats stats() const;  // may throw std::bad_alloc

 private:
  struct slot {
    std::uint32_t serial = 0;
    std::uint32_t wanted = 0;  // page groups, from the first on: with memory, or wished for
    std::uint32_t ready = 0;   // of these: known to have memory
    std::uint32_t asked = 0;   // of these: reserve() or fork() has asked for them
    std::uint32_t used = 0;    // no page group from here on had memory since the slot was cold
    std::uint32_t forked =
        0;  // of these: the first ones are of the sequence that it was forked from
    bool live = false;
    bool is_broken = false;  // a fork without all of these
    bool pending = false;    // in pending_
    bool heir = false;       // in heirs_
  };
  // What begin_step() copies for a fork.
  struct tail_copy {
    std::uint32_t from, to, group;  // slots, and the page group in both
    std::size_t bytes;
  };

  sequence_arena(kv::layout l, std::unique_ptr<group_store> store,
                 const sequence_arena_options &options, std::size_t slots);

  std::uint32_t group(std::uint32_t n, std::size_t i) const {
    return static_cast<std::uint32_t>(n * groups_per_slot_ + i);
  }
  std::size_t groups_for(std::size_t tokens) const { return layout_.pages_of(0, tokens).count; }
  status check_live(sequence_id s) const;
  result<std::uint32_t> take_slot(bool with_memory);
  void grow(std::uint32_t i, std::uint32_t groups);
  void shrink(std::uint32_t i, std::uint32_t groups);
  bool copied_from(std::uint32_t i) const;
  void free_slot(std::uint32_t i);
  void trim_spare(std::size_t groups);
  void trim_inherited();
  void take_ready();
  void break_fork(std::uint32_t i, std::uint32_t groups);
  status copy_tails(stream_ref stream);
  void free_leaving();
  status check_settled() const;
  std::uint32_t own_groups(std::uint32_t i) const;
  template <class Work>
  result<std::vector<sequence_id>> make(std::span<const sequence_place> places, const Work &work);
  void begin(std::span<const sequence_place> places);
  bool share(std::span<const sequence_place> places);
  bool has_all(std::span<const sequence_place> places);

  const kv::layout layout_;
  const std::size_t longest_, sequences_, spare_groups_;
  const std::size_t groups_per_slot_;
  const std::unique_ptr<group_store> store_;
  std::vector<slot> slots_;
  // Free slots: with memory, without, those that the worker still takes memory from, and those that a fork still has
  // to copy from.
  std::vector<std::uint32_t> warm_, cold_, cooling_, leaving_;
  std::vector<std::uint32_t> pending_;  // slots that the worker gives memory
  std::vector<std::uint32_t> heirs_;    // slots that add() took from warm_ since the last prepare()
  std::vector<tail_copy> copies_;
  std::size_t spare_ = 0;    // page groups of warm_
  bool is_starved_ = false;  // the latest step found too little memory
  sequence_arena_stats stats_;
};

}  // namespace stillmap::kv
