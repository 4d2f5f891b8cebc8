// Growth of a mapped_buffer: within its reservation, past it, and ahead of need.
#include <algorithm>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/mapped_buffer.h"

namespace stillmap {

status mapped_buffer::reserve(std::size_t bytes, consumer_stream consumer) {
  const lock_guard lock(mutex_);
  if (bytes <= capacity()) return {};
  const std::size_t held = committed_bytes({0, divide_up(bytes, page_)});
  const status grown = grow(bytes, consumer);
  if (!grown) return tl::unexpected(of_request(grown.error(), bytes, held));
  ++stats_.growths;
  return {};
}

status mapped_buffer::grow(std::size_t bytes, consumer_stream consumer) {
  if (bytes > round_up(SIZE_MAX / 2, page_)) {
    return make_error(errc::invalid_argument, "the size exceeds any address space", bytes,
                      SIZE_MAX / 2, error_unit::bytes);
  }
  if (bytes > reserved()) {
    STILLMAP_RETURN_IF_ERROR(check_memory(divide_up(bytes, page_) - committed_slots_));
    return outgrow(round_up(bytes, page_), consumer);
  }
  const std::size_t first = capacity() / page_;
  return fill({first, divide_up(bytes, page_) - first}, consumer);
}

status mapped_buffer::commit(std::size_t offset, std::size_t bytes, consumer_stream consumer) {
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_range(offset, bytes, true));
  const slot_run run{offset / page_, bytes / page_};
  const std::size_t held = committed_bytes(run);
  status done =
      with_host_memory([&]() STILLMAP_REQUIRES(mutex_) { return replace_released(run, consumer); });
  if (done) done = fill(run, consumer);
  if (!done) return tl::unexpected(of_request(done.error(), bytes, held));
  return {};
}

// Maps new pages where suspended ones were released for good. All or nothing.
status mapped_buffer::replace_released(slot_run run, consumer_stream consumer) {
  if (space().stats().released_bytes == 0) return {};
  remap_plan plan(remap_plan::of_buffer{}, access_);
  for (const mapping_record &m : space().mappings(span(run))) {
    if (m.state != mapping_state::released) continue;
    const std::size_t slot = (m.range.begin - address()) / page_;
    std::vector<page_ptr> page;
    STILLMAP_RETURN_IF_ERROR(
        options_.pools[slot % options_.pools.size()]->acquire(1, page, consumer));
    keep_pool_of(page.front());
    plan.resume(m.range.begin, std::move(page.front()), suspended_for_good);
  }
  return plan.empty() ? status{} : apply(std::move(plan));
}

std::size_t mapped_buffer::committed_bytes(slot_run within) const {
  within.count = std::min(within.end(), slots_.size()) - within.first;
  std::size_t slots = 0;
  for (const slot_run run : runs(within, true)) slots += run.count;
  return slots * page_;
}

// Commits the uncommitted slots of `run`. All or nothing.
status mapped_buffer::fill(slot_run run, consumer_stream consumer) {
  std::vector<revived_range> revived;
  const status filled =
      with_host_memory([&]() STILLMAP_REQUIRES(mutex_) { return fill(run, consumer, revived); });
  if (filled) {
    mark(run, true);
  } else {
    for (revived_range &r : revived) space().retire_again(r.block, r.range, r.idle);
  }
  return filled;
}

// After an error, the caller retires what `revived` lists again.
status mapped_buffer::fill(slot_run run, consumer_stream consumer,
                           std::vector<revived_range> &revived) {
  const std::vector<slot_run> gaps = runs(run, false);
  if (space().stats().retiring_mappings == 0) return map_fresh(gaps, consumer);
  for (const slot_run gap : gaps) STILLMAP_RETURN_IF_ERROR(revive(gap, consumer, revived));
  std::vector<slot_run> missing;
  for (const slot_run gap : gaps) {
    std::size_t next = gap.first;
    for (const revived_range &r : revived) {
      if (!span(gap).contains(r.range.begin)) continue;
      const std::size_t first = (r.range.begin - address()) / page_;
      if (first > next) missing.push_back({next, first - next});
      next = first + r.range.bytes / page_;
    }
    if (next < gap.end()) missing.push_back({next, gap.end() - next});
  }
  for (const slot_run r : missing) STILLMAP_RETURN_IF_ERROR(space().collect_range(span(r)));
  return map_fresh(missing, consumer);
}

// Takes this buffer's retiring mappings back, which costs no driver call. Mappings with pages that are
// used elsewhere must be unmapped before their addresses can be used.
status mapped_buffer::revive(slot_run run, consumer_stream consumer,
                             std::vector<revived_range> &revived) {
  while (run.count != 0) {
    const slot_run part = in_first_block(run);
    virtual_range left = span(part);
    while (!left.empty()) {
      revived.reserve(revived.size() + 1);
      fence idle;
      STILLMAP_ASSIGN_OR_RETURN(const auto back, space().revive(left, *access_, consumer, idle));
      if (back != 0) revived.push_back({block_of(part.first), {left.begin, back}, idle});
      const std::size_t skip = std::min(std::max(back, page_), left.bytes);
      left = {left.begin + skip, left.bytes - skip};
    }
    run = run.from(part.end());
  }
  return {};
}

status mapped_buffer::map_fresh(const std::vector<slot_run> &missing, consumer_stream consumer) {
  remap_plan plan(remap_plan::of_buffer{}, access_);
  STILLMAP_RETURN_IF_ERROR(plan_fresh(plan, missing, address(), consumer));
  return plan.empty() ? status{} : apply(std::move(plan));
}

// Acquires pages for the slots of `missing` and plans to map them, counted from `base`.
status mapped_buffer::plan_fresh(remap_plan &plan, const std::vector<slot_run> &missing,
                                 device_address base, consumer_stream consumer) {
  std::size_t slots = 0;
  for (const slot_run run : missing) slots += run.count;
  STILLMAP_RETURN_IF_ERROR(check_memory(slots));
  const std::size_t stripes = options_.pools.size();
  for (std::size_t stripe = 0; stripe < stripes; ++stripe) {
    const auto each = [&](auto act) {
      for (const slot_run run : missing) {
        for (std::size_t s = run.first; s < run.end(); ++s) {
          if (s % stripes == stripe) act(s);
        }
      }
    };
    std::size_t n = 0;
    each([&](std::size_t) { ++n; });
    std::vector<page_ptr> pages;
    STILLMAP_RETURN_IF_ERROR(options_.pools[stripe]->acquire(n, pages, consumer));
    for (const page_ptr &p : pages) keep_pool_of(p);  // memory was short: another pool's page
    auto next = pages.begin();
    each([&](std::size_t slot) { plan.map(base + slot * page_, std::move(*next++)); });
  }
  return {};
}

// Refuses `pages` new pages that the memory of the pools could never hold, before any is created.
// Each pool gets an equal share; pools of one location share its memory.
status mapped_buffer::check_memory(std::size_t pages) const {
  const auto &pools = options_.pools;
  for (const auto &pool : pools) {
    const auto same_location = [&](const auto &other) {
      return other->properties().location == pool->properties().location;
    };
    const auto sharing =
        static_cast<std::size_t>(std::count_if(pools.begin(), pools.end(), same_location));
    const std::size_t limit = pool->location_bytes();
    if (pages / pools.size() * sharing > limit / page_) {
      return make_error(errc::out_of_memory, "the request exceeds the device's memory",
                        pages * page_, limit, error_unit::bytes);
    }
  }
  return {};
}

// The ledger's reference to a page does not keep the page's pool alive; buffers that map it do.
void mapped_buffer::keep_pool_of(const page_ptr &page) {
  const auto in = [&](const auto &pools) {
    return std::find(pools.begin(), pools.end(), page.pool()) != pools.end();
  };
  if (!in(options_.pools) && !in(guests_)) guests_.push_back(page.pool());
}

// Grows past the reservation: by addresses right behind it, or else by moving the pages (not the data)
// to a larger reservation. Twice the size is a wish.
status mapped_buffer::outgrow(std::size_t bytes, consumer_stream consumer) {
  const std::size_t generous = std::max(bytes, reserved() * 2);
  const virtual_range now{address(), reserved()};
  const std::size_t alignment = page_ & (~page_ + 1);
  blocks_.reserve(blocks_.size() + 1);
  slots_.reserve(generous / page_);
  auto more = space().reserve_up_to(generous - now.bytes, bytes - now.bytes, alignment, now.end(),
                                    options_.tag);
  if (!more && more.error().code == std::errc::not_enough_memory) {
    return tl::unexpected(more.error());
  }
  if (more && (*more)->range().begin == now.end()) {
    slots_.resize((now.bytes + (*more)->range().bytes) / page_, 0);
    (*more)->of_buffer_ = true;
    blocks_.push_back(std::move(*more));
    const std::size_t first = capacity() / page_;
    const status filled = fill({first, bytes / page_ - first}, consumer);
    if (!filled) {
      slots_.resize(now.bytes / page_);
      blocks_.pop_back();
    }
    return filled;
  }
  if (more) more->reset();
  STILLMAP_ASSIGN_OR_RETURN(auto elsewhere,
                            space().reserve_up_to(generous, bytes, alignment, {}, options_.tag));
  return relocate(std::move(elsewhere), bytes, consumer);
}

// Moves every page to `target` and fills it up to `bytes`, in one plan.
status mapped_buffer::relocate(std::shared_ptr<address_block> target, std::size_t bytes,
                               consumer_stream consumer) {
  const device_address base = target->range().begin;
  const std::vector<slot_run> old = runs({0, slots_.size()}, true);
  std::vector<slot_run> missing = runs({0, slots_.size()}, false);
  std::erase_if(missing, [&](slot_run r) { return r.first < capacity() / page_; });
  missing.push_back({slots_.size(), bytes / page_ - slots_.size()});
  fence idle;
  if (!old.empty()) {
    if (consumer) {
      STILLMAP_ASSIGN_OR_RETURN(auto after, fence::after(device_, *consumer));
      idle = std::move(after);
    } else {
      STILLMAP_RETURN_IF_ERROR(wait_for_device());
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto passed, idle.passed());
  for (const slot_run run : old) {
    STILLMAP_RETURN_IF_ERROR(check_awake(run));
  }
  remap_plan plan(remap_plan::of_buffer{}, access_);
  for (const slot_run run : old) {
    for (auto &m : space().mappings(span(run))) {
      plan.map(base + (m.range.begin - address()), std::move(m.backing), std::move(m.access));
    }
    if (passed) plan.unmap(span(run));
  }
  STILLMAP_RETURN_IF_ERROR(plan_fresh(plan, missing, base, consumer));
  slots_.reserve(target->range().bytes / page_);
  STILLMAP_RETURN_IF_ERROR(apply(std::move(plan)));
  if (!passed) {
    for (const slot_run run : old) retire(run, idle);
  }
  for (const auto &block : blocks_) generation_before_ += block->generation();
  ++stats_.relocations;
  slots_.resize(target->range().bytes / page_, 0);
  target->of_buffer_ = true;
  blocks_.assign(1, std::move(target));
  for (const slot_run run : missing) mark(run, true);
  return {};
}

void mapped_buffer::size_changed() {
  const std::size_t ahead = options_.map_ahead_bytes;
  if (ahead == 0) return;
  const std::size_t spare = capacity() - size();
  if (spare * 2 >= ahead || ahead_due_.exchange(true)) return;
  if (options_.pools.front()->in_background(this, [this] { map_ahead(); })) return;
  ahead_due_ = false;
  const lock_guard lock(mutex_);
  ++stats_.ahead_failures;
}

void mapped_buffer::map_ahead() {
  const operation_scope scope("growable_buffer::resize");  // for which it was started
  const lock_guard lock(mutex_);
  ahead_due_ = false;
  const std::size_t target =
      std::min(reserved(), round_up(size() + options_.map_ahead_bytes, page_));
  const std::size_t first = capacity() / page_;
  if (target <= capacity()) return;
  if (fill({first, target / page_ - first}, std::nullopt)) {
    ++stats_.ahead_growths;
  } else {
    ++stats_.ahead_failures;
  }
}

}  // namespace stillmap
