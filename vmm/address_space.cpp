#include "stillmap/vmm/address_space.h"

#include <algorithm>
#include <iterator>
#include <new>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/internal/ledger.h"

namespace stillmap {
namespace {

// Where addresses are short, a wish for many gets this part of the largest free range: the rest is for
// others.
constexpr std::size_t share_of_free_addresses = 16;

}  // namespace

address_space::address_space(device_state &d)
    : device_(d), ledger_(std::make_unique<ledger>(d.caps.page_bytes)) {
  stats_.mapping_ceiling = d.caps.mapping_ceiling;
}

// The last handle of the device is destroyed, so only retiring mappings are left.
address_space::~address_space() {
  collect(true);
}

address_block::~address_block() {
  if (id_ != 0) device_.space->release_block(*this);
}

result<std::shared_ptr<address_block>> address_space::reserve(
    std::size_t bytes, std::size_t alignment, device_address hint, std::string tag,
    std::shared_ptr<suspension_listener> listener) {
  const operation_scope scope("address_space::reserve");
  return reserve_up_to(bytes, bytes, alignment, hint, std::move(tag), std::move(listener));
}

result<std::shared_ptr<address_block>> address_space::reserve_up_to(
    std::size_t bytes, std::size_t least, std::size_t alignment, device_address hint,
    std::string tag, std::shared_ptr<suspension_listener> listener) {
  const operation_scope scope("address_space::reserve_up_to");
  const std::size_t page = device_.caps.page_bytes;
  if (!device_.caps.vmm) {
    return make_error(errc::not_supported, "this device cannot reserve addresses");
  }
  if (bytes == 0 || bytes % page != 0) {
    return make_error(errc::invalid_argument, "the size is not a multiple of the page size", bytes,
                      page, error_unit::bytes);
  }
  if ((alignment & (alignment - 1)) != 0) {
    return make_error(errc::invalid_argument, "the alignment is not a power of two", alignment, 0,
                      error_unit::bytes);
  }
  if (hint.value() % page != 0) {
    return make_error(errc::invalid_argument, "the requested address is not page-aligned",
                      hint.value(), page, error_unit::address);
  }
  return with_host_memory([&]() -> result<std::shared_ptr<address_block>> {
    std::shared_ptr<address_block> block(
        new address_block(device_, std::move(tag), std::move(listener)));
    block_map prepared{{0, {{}, block}}};
    auto known = prepared.extract(prepared.begin());
    STILLMAP_ASSIGN_OR_RETURN(const auto at,
                              find_addresses(bytes, least, std::max(alignment, page), hint));
    const lock_guard lock(mutex_);
    block->range_ = at;
    block->id_ = next_block_++;
    known.key() = at.begin.value();
    known.mapped().end = block->range_.end();
    blocks_.insert(std::move(known));
    stats_.reserved_bytes += at.bytes;
    ++stats_.live_blocks;
    return block;
  });
}

// Reserves `bytes`, or fewer where those addresses are not free, but not fewer than `least`.
result<virtual_range> address_space::find_addresses(std::size_t bytes, std::size_t least,
                                                    std::size_t alignment, device_address hint) {
  const driver &drv = *device_.drv;
  const context_guard guard(drv, device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const lock_guard reserving(reserve_mutex_);
  const auto reserve_now = [&](std::size_t n) {
    return drv.reserve_addresses(n, alignment, hint).map([&](device_address at) {
      return virtual_range{at, n};
    });
  };
  result<virtual_range> found = reserve_now(bytes);
  // Retiring mappings keep their addresses until they are unmapped.
  if (!found && !found.error().is(errc::invalid_argument) && collect() != 0) {
    found = reserve_now(bytes);
  }
  if (found || !found.error().is(errc::address_space_exhausted)) return found;
  const std::size_t largest = largest_free(bytes, alignment);
  const std::size_t wish = round_up(std::max(least, largest / share_of_free_addresses), alignment);
  if (wish <= largest) found = reserve_now(wish);
  if (found || !found.error().is(errc::address_space_exhausted)) return found;
  error e = found.error();
  e.reason = "no range of free addresses is that large: reserve less, or release reservations";
  e.value = least;
  e.limit = largest;
  return tl::unexpected(e);
}

// The most bytes below `above` that can be reserved now. Requires: `above` cannot be; the context.
std::size_t address_space::largest_free(std::size_t above, std::size_t alignment) const {
  std::size_t free = 0;
  while (above - free > alignment) {
    const std::size_t middle = round_up(free + (above - free) / 2, alignment);
    if (middle == above) break;
    const auto at = device_.drv->reserve_addresses(middle, alignment, {});
    if (at) {
      report_if_failed(device_.drv->free_addresses({*at, middle}));
      free = middle;
    } else {
      above = middle;
    }
  }
  return free;
}

// The addresses from the block before to the block after one.
virtual_range address_space::between_neighbours_locked(block_map::const_iterator block) const {
  const auto after = std::next(block);
  const device_address begin =
      block == blocks_.begin() ? device_address(0) : std::prev(block)->second.end;
  const device_address end(after == blocks_.end() ? UINT64_MAX : after->first);
  return {begin, end - begin};
}

void address_space::release_block(address_block &block) noexcept {
  {
    const lock_guard lock(mutex_);
    forget_suspended_locked(block.range());
    const auto gone = blocks_.find(block.range().begin.value());
    ledger_->mappings.trim(between_neighbours_locked(gone));
    blocks_.erase(gone);
    stats_.reserved_bytes -= block.range().bytes;
    --stats_.live_blocks;
  }
  const context_guard guard(*device_.drv, device_.context());
  report_if_failed(guard.entered() ? device_.drv->free_addresses(block.range()) : guard.entered());
}

// Not while another thread is unmapping some of them.
void address_space::abandon(const page_owner &pool) noexcept {
  mapping_list left;  // destroyed after the locks are released
  {
    const lock_guard collecting(collect_mutex_);
    const lock_guard lock(mutex_);
    mapping_index &all = ledger_->mappings;
    for (mapping_entry *e = all.first(), *next = nullptr; e != nullptr; e = next) {
      next = all.after(*e);
      if (e->backing && e->backing.page_->owner_ == &pool)
        left.push_back(*take_locked(*e).release());
    }
    stats_.live_mappings = all.size() - suspended_;
  }
  const std::size_t n = left.size();
  while (mapping_entry *const e = left.pop_front()) delete e;
  if (n == 0) return;
  report_if_failed(
      status(make_error(errc::corrupt, "mappings that the driver did not unmap are left behind", n,
                        0, error_unit::items)));
}

// What it returns must live longer than the lock: it may hold the last reference to a page, or to a
// block.
std::unique_ptr<mapping_entry> address_space::take_locked(mapping_entry &e) {
  if (e.retiring) {
    --stats_.retiring_mappings;
    if (e.retired != 0) ledger_->retiring.remove(e);
  }
  if (e.suspended_by != 0) {
    --suspended_;
    bytes_without_page_locked(e) -= e.range.bytes;
    count_suspended_locked(*e.suspended_in, -1);
  } else {
    stats_.mapped_bytes -= e.range.bytes;
  }
  return ledger_->mappings.remove(e);
}

// Takes an entry that holds neither the last reference to a page nor one to a block.
void address_space::drop_locked(mapping_entry &e) {
  std::unique_ptr<mapping_entry> gone = take_locked(e);
  gone->clear();
  ledger_->spare.give(std::move(gone));
}

void address_space::suspend_locked(mapping_entry &e, address_block &block, std::uint64_t by) {
  e.suspended_by = by;
  e.suspended_in = &block;  // which gives up its suspended places before it ends
  ++suspended_;
  stats_.mapped_bytes -= e.range.bytes;
  bytes_without_page_locked(e) += e.range.bytes;
  count_suspended_locked(block, 1);
}

void address_space::count_suspended_locked(address_block &block, int change) noexcept {
  const bool any = block.suspended_ != 0;
  block.suspended_ += static_cast<std::size_t>(change);
  const bool now = block.suspended_ != 0;
  if (block.listener_ && any != now) block.listener_->on_suspension(now);
}

// The figure that a suspended or released place is counted in.
std::size_t &address_space::bytes_without_page_locked(const mapping_entry &e) {
  return e.suspended_by == suspended_for_good ? stats_.released_bytes : stats_.suspended_bytes;
}

void address_space::release_suspended(virtual_range range, std::uint64_t by) noexcept {
  const lock_guard lock(mutex_);
  const mapping_index &all = ledger_->mappings;
  for (mapping_entry *e = all.from(range.begin); e != nullptr && e->range.begin < range.end();
       e = all.after(*e)) {
    if (e->suspended_by != by) continue;
    bytes_without_page_locked(*e) -= e->range.bytes;
    e->suspended_by = suspended_for_good;
    bytes_without_page_locked(*e) += e->range.bytes;
  }
}

void address_space::forget_suspended_locked(virtual_range range) {
  if (suspended_ == 0) return;
  const mapping_index &all = ledger_->mappings;
  for (mapping_entry *e = all.from(range.begin), *next = nullptr;
       e != nullptr && e->range.begin < range.end(); e = next) {
    next = all.after(*e);
    if (e->suspended_by != 0) drop_locked(*e);  // without a page, and not retiring
  }
}

std::shared_ptr<address_block> address_space::block_at_locked(device_address at) const {
  const auto after = blocks_.upper_bound(at.value());
  if (after == blocks_.begin()) return nullptr;
  const known_block &known = std::prev(after)->second;
  // A block elsewhere is not held even for a moment: if its last holder let it go just then, it would end
  // here, under the lock that it takes to end.
  return at < known.end ? known.block.lock() : nullptr;
}

std::shared_ptr<address_block> address_space::block_at(device_address at) const {
  const lock_guard lock(mutex_);
  return block_at_locked(at);
}

address_space::subscription address_space::on_backing_change(backing_callback cb) {
  try {
    auto kept = std::make_shared<const backing_callback>(std::move(cb));
    auto all = std::make_shared<subscribers>();
    const lock_guard lock(mutex_);
    all->reserve(1 + (callbacks_ ? callbacks_->size() : 0));
    if (callbacks_) {
      std::copy_if(callbacks_->begin(), callbacks_->end(), std::back_inserter(*all),
                   [](const auto &weak) { return !weak.expired(); });
    }
    all->push_back(kept);
    callbacks_ = std::move(all);
    return kept;
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}

void address_space::notify(backing_event::phase when, const address_block &block,
                           virtual_range range) const {
  std::shared_ptr<const subscribers> all;
  {
    const lock_guard lock(mutex_);
    all = callbacks_;
  }
  if (!all) return;
  const outside_scopes callbacks;
  const std::uint64_t coming = when == backing_event::phase::about_to_change ? 1 : 0;
  const backing_event event{when, range, block.generation() + coming, &block};
  for (const auto &weak : *all) {
    if (const subscription cb = weak.lock()) (*cb)(event);
  }
}

result<address_space::fallback_record> address_space::prepare_fallback() {
  return with_host_memory("address_space::prepare_fallback", []() -> result<fallback_record> {
    decltype(fallbacks_) one{{0, virtual_range{}}};
    return one.extract(one.begin());
  });
}

void address_space::add_fallback(virtual_range range, fallback_record prepared) noexcept {
  prepared.key() = range.begin.value();
  prepared.mapped() = range;
  const lock_guard lock(mutex_);
  fallbacks_.insert(std::move(prepared));
  stats_.mapped_bytes += range.bytes;
  stats_.physical += physical_size(range.bytes);
  stats_.physical_peak = std::max(stats_.physical_peak, stats_.physical);
}

address_space::fallback_record address_space::remove_fallback(virtual_range range) noexcept {
  const lock_guard lock(mutex_);
  stats_.mapped_bytes -= range.bytes;
  stats_.physical -= physical_size(range.bytes);
  return fallbacks_.extract(range.begin.value());
}

void address_space::physical_created(std::size_t bytes) {
  const lock_guard lock(mutex_);
  stats_.physical += physical_size(bytes);
  stats_.physical_peak = std::max(stats_.physical_peak, stats_.physical);
}

void address_space::physical_released(std::size_t bytes) {
  const lock_guard lock(mutex_);
  stats_.physical -= physical_size(bytes);
}

address_space_stats address_space::stats() const {
  const lock_guard lock(mutex_);
  return stats_;
}

std::vector<block_record> address_space::blocks() const {
  std::vector<std::shared_ptr<address_block>> held;  // released after the lock
  const lock_guard lock(mutex_);
  held.reserve(blocks_.size());
  std::vector<block_record> out;
  for (const auto &[begin, known] : blocks_) {
    const auto &block = held.emplace_back(known.block.lock());
    if (!block) continue;
    block_record r{block->range(), block->id(), block->tag(), block->generation(), 0, 0, 0};
    const mapping_index &all = ledger_->mappings;
    for (const mapping_entry *e = all.from(device_address(begin));
         e != nullptr && r.range.contains(e->range.begin); e = all.after(*e)) {
      if (e->suspended_by != 0) {
        (e->suspended_by == suspended_for_good ? r.released_bytes : r.suspended_bytes) +=
            e->range.bytes;
        continue;
      }
      r.mapped_bytes += e->range.bytes;
      ++r.mappings;
    }
    out.push_back(std::move(r));
  }
  return out;
}

std::vector<mapping_record> address_space::mappings(virtual_range within) const {
  std::vector<mapping_record> out;  // if it is dropped, after the lock
  const lock_guard lock(mutex_);
  const mapping_index &all = ledger_->mappings;
  const mapping_entry *e = all.before(within.begin);
  for (e = e != nullptr ? e : all.from(within.begin); e != nullptr; e = all.after(*e)) {
    const virtual_range range = e->range;
    if (range.begin >= within.end()) break;
    if (!range.overlaps(within)) continue;
    const mapping_state state = e->retiring                             ? mapping_state::retiring
                                : e->suspended_by == 0                  ? mapping_state::mapped
                                : e->suspended_by == suspended_for_good ? mapping_state::released
                                                                        : mapping_state::suspended;
    out.push_back({range, page_ptr(e->backing), *e->access, state, e->suspended_by});
  }
  for (const auto &[begin, range] : fallbacks_) {
    if (!range.overlaps(within)) continue;
    out.push_back({range, {}, {{on_device(device_.ordinal), access_mode::read_write}}});
  }
  std::sort(out.begin(), out.end(),
            [](const auto &a, const auto &b) { return a.range.begin < b.range.begin; });
  return out;
}

std::vector<mapping_record> address_space::mappings() const {
  return mappings({device_address(0), SIZE_MAX});
}

bool address_space::records_any(virtual_range range) const {
  const lock_guard lock(mutex_);
  const mapping_entry *const last = ledger_->mappings.before(range.end());
  return last != nullptr && last->range.overlaps(range);
}

}  // namespace stillmap
