#include "preload/service/ipc/imported_blocks.h"

#include <utility>

#include "preload/service/ipc/refusal.h"
#include "preload/service/memory/captures.h"
#include "preload/service/memory/queued_work.h"
#include "preload/service/real_driver.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/undying.h"
#include "stillmap/vmm/context.h"

namespace stillmap::preload {

constinit std::atomic<bool> imported_blocks::any_{false};

imported_blocks &imported_blocks::all() noexcept {
  static undying<imported_blocks> blocks;
  return *blocks;
}

driver_code imported_blocks::open(word at, const memory_handle &h, int current) noexcept {
  const lock_guard one(opening_);
  if (open_again(at, h)) return code::success;
  auto made = with_host_memory("stillmap_preload", [&] { return import(h, current); });
  if (!made) return code_of_refusal(made.error());
  *reinterpret_cast<word *>(at) = made->key();
  const lock_guard lock(mutex_);
  blocks_.insert(std::move(*made));
  any_.store(true, std::memory_order_release);
  return code::success;
}

bool imported_blocks::open_again(word at, const memory_handle &h) noexcept {
  const lock_guard lock(mutex_);
  for (auto &[block, opened] : blocks_) {
    if (opened.memory->handle() != h) continue;
    ++opened.count;
    *reinterpret_cast<word *>(at) = block;
    return true;
  }
  return false;
}

result<imported_blocks::block_map::node_type> imported_blocks::import(const memory_handle &h,
                                                                      int current) {
  STILLMAP_ASSIGN_OR_RETURN(const driver *const drv, open_real_driver());
  const relaxed_capture_mode relaxed(*drv);  // a capture that is under way stays valid
  STILLMAP_RETURN_IF_ERROR(relaxed.entered());
  STILLMAP_ASSIGN_OR_RETURN(auto memory, imported_block::open(h, current));
  block_map one;
  const word block = memory->block().begin.value();
  one.emplace(block, opened_block{std::move(memory)});
  return one.extract(one.begin());
}

std::optional<driver_code> imported_blocks::close(word block) noexcept {
  block_map::node_type last;
  {
    const lock_guard lock(mutex_);
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) return std::nullopt;
    if (found->second.count > 1) {
      --found->second.count;
      return code::success;
    }
    last = blocks_.extract(found);
  }
  const driver_code result = unmap(*last.mapped().memory);
  if (result == code::success) return result;
  const lock_guard lock(mutex_);
  blocks_.insert(std::move(last));
  return result;
}

// What may use it is waited for, as the driver does.
driver_code imported_blocks::unmap(imported_block &block) noexcept {
  driver_code result = code::success;
  switch (queued_work::wait(result, block.ordinal())) {
    case queued_work::outcome::failed:
      return result;
    case queued_work::outcome::capturing:
      return code::stream_capture_unsupported;
    case queued_work::outcome::done:
      break;
  }
  const status closed = with_host_memory("stillmap_preload", [&] { return block.close(); });
  return closed ? code::success : code_of_refusal(closed.error());
}

std::optional<imported_blocks::place> imported_blocks::find(word address) noexcept {
  if (!any_.load(std::memory_order_acquire) || in_child()) return std::nullopt;
  imported_blocks &b = all();
  const lock_guard lock(b.mutex_);
  const device_address at(address);
  for (const auto &[begin, opened] : b.blocks_) {
    if (!opened.memory->pages().contains(at)) continue;
    const virtual_range block = opened.memory->block();
    return place{block.contains(at) ? std::optional(block) : std::nullopt};
  }
  return std::nullopt;
}

bool imported_blocks::in_child() noexcept {
  return all().process_.in_child();
}

}  // namespace stillmap::preload
