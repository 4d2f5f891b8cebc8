#include "stillmap/vmm/internal/mapped_buffer.h"

#include <algorithm>

#include "stillmap/vmm/base/try.h"

namespace stillmap {

// As much as the device has memory, so that the buffer grows in place whatever it holds; of many buffers
// each can hold a part only. All of them together take a few times the largest reservation.
std::size_t default_reservation(const device &d) {
  const std::size_t others = d.space().stats().live_blocks;
  return std::min(d.total_memory().bytes(),
                  d.capabilities().largest_reservation / std::max<std::size_t>(2, others + 1));
}

result<std::unique_ptr<buffer_impl>> make_mapped_buffer(const device &d, buffer_options options) {
  if (options.pools.empty()) options.pools.push_back(d.pool());
  const std::size_t page = options.pools.front()->page_bytes();
  for (const auto &pool : options.pools) {
    if (pool->page_bytes() != page) {
      return make_error(errc::invalid_argument, "the pools have different page sizes",
                        pool->page_bytes(), page, error_unit::bytes);
    }
  }
  std::vector<access_grant> access{{on_device(d.ordinal()), access_mode::read_write}};
  for (const int peer : options.peer_devices) {
    const access_grant grant{on_device(peer), access_mode::read_write};
    if (std::find(access.begin(), access.end(), grant) == access.end()) access.push_back(grant);
  }
  // A stated reservation is a demand, the default a wish.
  const bool stated = options.reserve_bytes != 0;
  const std::size_t wanted =
      round_up(stated ? options.reserve_bytes : default_reservation(d), page);
  STILLMAP_ASSIGN_OR_RETURN(
      auto block, d.space().reserve_up_to(wanted, stated ? wanted : page, page & (~page + 1),
                                          options.hint, options.tag));
  return std::make_unique<mapped_buffer>(
      d, std::move(options), std::make_shared<const std::vector<access_grant>>(std::move(access)),
      std::move(block));
}

mapped_buffer::mapped_buffer(stillmap::device d, buffer_options options, access_ptr access,
                             std::shared_ptr<address_block> first)
    : buffer_impl(std::move(d), std::move(options)),
      page_(options_.pools.front()->page_bytes()),
      access_(std::move(access)),
      slots_(first->range().bytes / page_, 0) {
  first->of_buffer_ = true;
  blocks_.push_back(std::move(first));
}

mapped_buffer::~mapped_buffer() {
  options_.pools.front()->cancel_background(this);
}

std::size_t mapped_buffer::mapped_bytes() const {
  const lock_guard lock(mutex_);
  return committed_slots_ * page_;
}

std::uint64_t mapped_buffer::generation() const {
  const lock_guard lock(mutex_);
  std::uint64_t sum = generation_before_;
  for (const auto &block : blocks_) sum += block->generation();
  return sum;
}

bool mapped_buffer::committed(std::size_t offset, std::size_t bytes) const {
  const lock_guard lock(mutex_);
  if (offset > reserved() || bytes > reserved() - offset) return false;
  if (bytes == 0) return true;
  for (std::size_t s = offset / page_; s <= (offset + bytes - 1) / page_; ++s) {
    if ((slots_[s] & live) == 0) return false;
  }
  return true;
}

// The first run of slots in `within` that are committed, or that are not. Its count is 0 where there is
// none.
mapped_buffer::slot_run mapped_buffer::next_run(slot_run within, bool committed) const {
  // A reservation may have a hundred thousand slots of which a few were ever used.
  const std::size_t end = committed ? std::min(within.end(), committed_end_) : within.end();
  const auto wanted = [&](std::size_t s) STILLMAP_REQUIRES(mutex_) {
    return ((slots_[s] & live) != 0) == committed;
  };
  std::size_t first = within.first;
  while (first < end && !wanted(first)) ++first;
  std::size_t last = first;
  while (last < end && wanted(last)) ++last;
  return {first, last - first};
}

std::vector<mapped_buffer::slot_run> mapped_buffer::runs(slot_run within, bool committed) const {
  std::vector<slot_run> out;
  for (slot_run r = next_run(within, committed); r.count != 0;
       r = next_run(within.from(r.end()), committed)) {
    out.push_back(r);
  }
  return out;
}

std::shared_ptr<address_block> mapped_buffer::block_of(std::size_t slot) const {
  const device_address at = address() + slot * page_;
  for (const auto &block : blocks_) {
    if (block->range().contains(at)) return block;
  }
  return nullptr;
}

// The part of `run` in the reservation that its first slot is in.
mapped_buffer::slot_run mapped_buffer::in_first_block(slot_run run) const {
  const virtual_range block = block_of(run.first)->range();
  const std::size_t left = (block.end() - (address() + run.first * page_)) / page_;
  return {run.first, std::min(run.count, left)};
}

// Retires the mappings of `run`, reservation by reservation.
void mapped_buffer::retire(slot_run run, const fence &idle) noexcept {
  while (run.count != 0) {
    const slot_run part = in_first_block(run);
    space().retire_again(block_of(part.first), span(part), idle);
    run = run.from(part.end());
  }
}

// Slots that are in that state keep their other flags.
void mapped_buffer::mark(slot_run run, bool committed) {
  for (std::size_t s = run.first; s < run.end(); ++s) {
    if (((slots_[s] & live) != 0) == committed) continue;
    slots_[s] = committed ? live : 0;
    committed_slots_ += committed ? 1 : std::size_t(-1);
  }
  if (committed) {
    committed_end_ = std::max(committed_end_, run.end());
  } else if (run.end() >= committed_end_) {
    committed_end_ = std::min(committed_end_, run.first);
  }
  // Capacity reaches to the first gap; only a change at or below it can move it.
  std::size_t end = std::min(capacity_.load(std::memory_order_relaxed) / page_, run.first);
  while (end < slots_.size() && (slots_[end] & live) != 0) ++end;
  capacity_.store(end * page_, std::memory_order_release);
}

status mapped_buffer::check_range(std::size_t offset, std::size_t bytes, bool pages) const {
  if (pages && offset % page_ != 0) {
    return make_error(errc::invalid_argument, "the offset is not a multiple of the page size",
                      offset, page_, error_unit::bytes);
  }
  if (pages && bytes % page_ != 0) {
    return make_error(errc::invalid_argument, "the length is not a multiple of the page size",
                      bytes, page_, error_unit::bytes);
  }
  if (offset > reserved() || bytes > reserved() - offset) {
    return make_error(errc::invalid_argument, "the range is outside the reservation",
                      bytes > SIZE_MAX - offset ? SIZE_MAX : offset + bytes, reserved(),
                      error_unit::bytes);
  }
  return {};
}

std::vector<page_ptr> mapped_buffer::pages_of(slot_run run) const {
  std::vector<page_ptr> out;
  out.reserve(run.count);
  for (auto &m : space().mappings(span(run))) out.push_back(std::move(m.backing));
  return out;
}

status mapped_buffer::apply(remap_plan &&plan) {
  const std::uint64_t reported = background_error_count();
  status s = space().apply(std::move(plan));
  if (!s && background_error_count() != reported) forget_lost();
  return s;
}

// An undo that the driver refused is a background error; lost pages are no longer committed.
void mapped_buffer::forget_lost() {
  for (std::size_t slot = 0; slot < committed_end_; ++slot) {
    if ((slots_[slot] & live) != 0 && !space().records_any(span({slot, 1}))) {
      mark({slot, 1}, false);
    }
  }
}

// What gives pages back also unmaps those that were given back before and that no work uses any more.
void mapped_buffer::collect_passed() const {
  if (space().stats().retiring_mappings != 0) space().collect();
}

status mapped_buffer::shrink_to(std::size_t bytes, release_fence idle) {
  collect_passed();
  const lock_guard lock(mutex_);
  const std::size_t keep = divide_up(bytes, page_);
  return empty({keep, slots_.size() - keep}, idle);
}

status mapped_buffer::decommit(std::size_t offset, std::size_t bytes, release_fence idle) {
  collect_passed();
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_range(offset, bytes, true));
  return empty({offset / page_, bytes / page_}, idle);
}

// Decommits the committed slots of `run`. All or nothing. It takes no host memory: destructors use it.
status mapped_buffer::empty(slot_run run, release_fence idle) {
  if (next_run(run, true).count == 0) return {};
  run.count = std::min(run.end(), committed_end_) - run.first;
  fence after = idle != nullptr ? *idle : fence();
  if (idle == nullptr) {
    STILLMAP_RETURN_IF_ERROR(wait_for_device());
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto passed, after.passed());
  if (passed) {
    const std::uint64_t reported = background_error_count();
    if (status s = space().unmap(span(run)); !s) {
      if (background_error_count() != reported) forget_lost();
      return s;
    }
  } else {
    for (slot_run r = next_run(run, true); r.count != 0; r = next_run(run.from(r.end()), true)) {
      retire(r, after);
    }
  }
  mark(run, false);
  return {};
}

status mapped_buffer::close(release_fence idle) {
  options_.pools.front()->cancel_background(this);
  collect_passed();
  const lock_guard lock(mutex_);
  ahead_due_ = false;
  return empty({0, slots_.size()}, idle);
}

}  // namespace stillmap
