// Key-value memory in blocks, for an engine that chooses block ids itself: one tensor a layer whose addresses never
// change, and memory for the blocks that the engine names. kv::block_arena chooses ids.
// docs/kv_arena.md#block-ids-of-the-engine
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::kv {

class group_store;

struct block_memory_options {
  kv::shape shape{};
  std::size_t tokens_per_block = 16;
  std::size_t blocks = 0;              // the most there can be: addresses, not memory
  std::uint32_t layers_per_range = 0;  // 0: the rule of layout::create
  std::shared_ptr<page_pool>
      pool{};  // empty: one of its own, which gives back what a step does not need
  std::string tag = "kv cache";  // for suspend, snapshots and reports
};

struct block_memory_stats {
  std::size_t committed = 0;            // blocks that may be used
  std::size_t pending = 0;              // blocks that wait for memory
  std::size_t mapped_bytes = 0;         // of the page groups with memory
  std::uint64_t steps = 0;              // begin_step()
  std::uint64_t steps_that_waited = 0;  // of these: the worker was not done
};

// A block is committed (its memory may be used), pending (it was asked for, and waits for memory) or neither.
// Threads: externally synchronised; the worker, which maps and unmaps, is synchronised internally.
// Streams: a committed block may be used by any stream. Pages are taken away only after a fence.
// Failure: every operation leaves everything as it was, unless it says otherwise.
class block_memory {
 public:
  // Errors: those of layout::create; invalid_argument (no blocks, or more than 2^32 - 2; a pool of another device),
  //         not_supported (the device has no virtual memory), address_space_exhausted.
  // Cost:   one reserve; no memory.
  static result<std::unique_ptr<block_memory>> create(const stillmap::device &d,
                                                      block_memory_options options);
  // Waits for the device's work.
  ~block_memory();
  block_memory(const block_memory &) = delete;
  block_memory &operator=(const block_memory &) = delete;

  // ---- addresses: constant for life ----------------------------------------------------------------

  const kv::layout &layout() const { return layout_; }
  // Block 0 of a tensor; block i is i * layout().block_stride() bytes further. Requires: layer < shape.layers,
  // tensor < shape.tensors.
  device_address tensor(std::uint32_t layer, std::uint32_t tensor) const;
  std::size_t blocks() const { return states_.size(); }
  virtual_range range() const;
  // Rises whenever pages behind any address change: for those who register memory with a NIC.
  std::uint64_t generation() const;

  // ---- blocks --------------------------------------------------------------------------------------

  // Each of the blocks [first, first + count) shall have memory. A block all of whose pages its neighbours have is
  // committed at once; the others are pending, until begin_step() after a prepare(). Idempotent: what is committed or
  // pending stays so.
  // Errors: invalid_argument (blocks that there are not: value = first + count, limit = blocks()).
  // Cost:   no driver call.
  status commit(std::size_t first, std::size_t count);
  // None of the blocks needs memory: nothing that is launched from now on may use them. A page group of which no block
  // is committed or pending loses its memory once the stream of the next prepare() has done what is queued on it.
  // Idempotent: there is no count of commits.
  // Errors: invalid_argument, as commit(). Cost: no driver call.
  status decommit(std::size_t first, std::size_t count);
  // All of the blocks may be used. False where one of them is none.
  bool is_committed(std::size_t first, std::size_t count = 1) const;
  // Ranges of committed blocks, in order: first and count. May throw std::bad_alloc.
  std::vector<std::pair<std::size_t, std::size_t>> committed_ranges() const;

  // ---- steps ---------------------------------------------------------------------------------------

  // The worker maps what is pending, and unmaps what no block needs, once `stream` has done what is queued on it. Call
  // it while the step before runs.
  // Errors: invalid_argument (the calling thread's default stream, which the worker cannot name), busy (suspended); of
  //         the host: a thread or memory that cannot be had. The wishes stay for the next call then.
  // Cost:   no driver call on this thread; where nothing is to do, no call at all.
  status prepare(stream_ref stream);
  // Waits for the worker, if it is not done. Blocks that it gave memory are committed. Those that it could not give any
  // are neither committed nor pending: decommit others, and commit them again.
  // Errors: out_of_memory (value = bytes that were to be mapped, limit = bytes that there were for them: they are
  //         mapped, those of the lowest addresses), busy (suspended), the driver's. The step may run with what is
  //         committed.
  // Cost:   no driver call, no synchronisation of the device.
  status begin_step();
  // Waits for the device's work, does what is wished for, and gives what no block needs back to the device, or to a
  // pool of the caller's. Returns the bytes that the device got.
  // Errors: the driver's, busy (suspended).
  result<std::size_t> trim();

  block_memory_stats stats() const;

 private:
  enum class state : std::uint8_t {
    none,
    pending,
    withdrawn,  // among pending_, but not wanted any more
    committed,
  };

  block_memory(kv::layout l, std::unique_ptr<group_store> store, std::size_t blocks);

  status check(std::size_t first, std::size_t count) const;
  void want(std::size_t block);
  void give_up(std::size_t block);
  bool has_memory(std::size_t block) const;
  bool waits(std::size_t block) const;
  void take_ready();

  const kv::layout layout_;
  const std::unique_ptr<group_store> store_;
  std::vector<state> states_;         // of each block
  std::vector<std::uint32_t> needs_;  // of each page group: blocks with bytes in it that are wanted
  std::vector<std::uint32_t> pending_;  // blocks that are pending or withdrawn, each once
  block_memory_stats stats_;
};

}  // namespace stillmap::kv
