// The blocks of other processes that this one has open.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "preload/functions/abi.h"
#include "preload/service/ipc/imported_block.h"
#include "stillmap/vmm/base/fork_watch.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::preload {

// Threads: safe.
class imported_blocks {
 public:
  // Of this process. A forked child has none, and none can be opened there: CUDA does not work in it.
  static imported_blocks &all() noexcept;

  // As cuIpcOpenMemHandle: a handle that is open gives the same address, and counts. `current`: the device of the
  // context that asks.
  driver_code open(word at, const memory_handle &h, int current) noexcept
      STILLMAP_EXCLUDES(opening_, mutex_);
  // As cuIpcCloseMemHandle; nothing: no block of these is there.
  std::optional<driver_code> close(word block) noexcept STILLMAP_EXCLUDES(mutex_);

  // What an address in the pages of such a block belongs to.
  struct place {
    std::optional<virtual_range> block;  // nothing: what else is on its pages
  };
  static std::optional<place> find(word address) noexcept;
  static bool in_child() noexcept;

 private:
  struct opened_block {
    std::unique_ptr<imported_block> memory;
    std::uint64_t count = 1;
  };
  using block_map = std::map<word, opened_block>;  // by the address that the program has

  bool open_again(word at, const memory_handle &h) noexcept STILLMAP_EXCLUDES(mutex_);
  result<block_map::node_type> import(const memory_handle &h, int current);
  driver_code unmap(imported_block &block) noexcept;

  static std::atomic<bool> any_;  // there has been one
  const fork_watch process_;
  mutex
      opening_;  // one at a time, so that a handle that two threads open is mapped once. Before mutex_
  mutex mutex_;
  block_map blocks_ STILLMAP_GUARDED_BY(mutex_);
};

}  // namespace stillmap::preload
