// Operations on pages with more than one address: alias, fork, make_writable, splice.
#include <algorithm>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/mapped_buffer.h"
#include "stillmap/vmm/internal/mapping_index.h"

namespace stillmap {

namespace {

// This buffer has two references: the argument, and the mapping that it came from.
bool shown_elsewhere(const page_ptr &found) {
  return found.use_count() > 2;
}

}  // namespace

mapped_buffer::access_ptr mapped_buffer::reading() const {
  std::vector<access_grant> out = *access_;
  for (access_grant &g : out) g.mode = access_mode::read;
  return std::make_shared<const std::vector<access_grant>>(std::move(out));
}

// Suspended slots have no pages to share or move.
status mapped_buffer::check_awake(slot_run run) const {
  const address_space_stats now = space().stats();
  if (now.suspended_bytes + now.released_bytes == 0) return {};
  for (const mapping_record &m : space().mappings(span(run))) {
    if (m.suspended_by == 0) continue;
    return make_error(errc::busy,
                      m.state == mapping_state::released ? released_reason : suspended_reason,
                      m.range.begin - address(), 0, error_unit::bytes);
  }
  return {};
}

status mapped_buffer::check_access(std::size_t offset, std::size_t bytes,
                                   access_mode wanted) const {
  const lock_guard lock(mutex_);
  const std::size_t first = offset / page_;
  const slot_run run{first, (offset + bytes - 1) / page_ - first + 1};
  STILLMAP_RETURN_IF_ERROR(check_awake(run));
  if (wanted != access_mode::read_write) return {};
  for (std::size_t s = run.first; s < run.end(); ++s) {
    if ((slots_[s] & forked) == 0) continue;
    return make_error(errc::busy,
                      "a page in the range is shared by a fork: call make_writable first",
                      s * page_, 0, error_unit::bytes);
  }
  return {};
}

// Checks that every slot is committed and has no `forbidden` flag. Clears the flag of a closed alias,
// which cannot do so itself.
status mapped_buffer::check_shareable(slot_run run, std::uint8_t forbidden) {
  STILLMAP_RETURN_IF_ERROR(check_awake(run));
  for (std::size_t s = run.first; s < run.end(); ++s) {
    if ((slots_[s] & live) == 0) {
      return make_error(errc::invalid_argument, "part of the range is not committed", s * page_, 0,
                        error_unit::bytes);
    }
    if ((slots_[s] & forbidden & aliased) != 0 && !shown_elsewhere(pages_of({s, 1}).front())) {
      slots_[s] &= static_cast<std::uint8_t>(~aliased);
    }
    if ((slots_[s] & forbidden) != 0) {
      return make_error(errc::busy,
                        (slots_[s] & forked) != 0 ? "a page in the range is shared by a fork"
                                                  : "a page in the range is aliased",
                        s * page_, 0, error_unit::bytes);
    }
  }
  return {};
}

result<std::unique_ptr<buffer_impl>> mapped_buffer::alias(std::size_t offset, std::size_t bytes,
                                                          std::size_t times) {
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_range(offset, bytes, true));
  if (bytes == 0 || times == 0 || times > SIZE_MAX / 2 / bytes) {
    return make_error(errc::invalid_argument, "there is nothing to alias, or too much", times, 0,
                      error_unit::items);
  }
  const slot_run run{offset / page_, bytes / page_};
  STILLMAP_RETURN_IF_ERROR(check_shareable(run, forked));
  buffer_options options = options_;
  options.map_ahead_bytes = 0;
  auto block = space().reserve(bytes * times, page_ & (~page_ + 1), {}, options.tag);
  if (!block) return tl::unexpected(block.error());
  auto other =
      std::make_unique<mapped_buffer>(device_, std::move(options), access_, std::move(*block));
  const lock_guard other_lock(other->mutex_);  // nobody else's yet
  remap_plan plan(remap_plan::of_buffer{}, access_);
  const std::vector<page_ptr> pages = pages_of(run);
  for (std::size_t i = 0; i < pages.size() * times; ++i) {
    plan.map(other->address() + i * page_, pages[i % pages.size()]);
  }
  for (const page_ptr &p : pages) other->keep_pool_of(p);
  STILLMAP_RETURN_IF_ERROR(apply(std::move(plan)));
  other->mark({0, pages.size() * times}, true);
  for (std::uint8_t &slot : other->slots_) slot |= aliased;
  for (std::size_t s = run.first; s < run.end(); ++s) slots_[s] |= aliased;
  other->size_ = bytes * times;
  return other;
}

result<std::unique_ptr<buffer_impl>> mapped_buffer::fork() {
  const lock_guard lock(mutex_);
  const std::vector<slot_run> full = runs({0, slots_.size()}, true);
  for (const slot_run run : full) {
    STILLMAP_RETURN_IF_ERROR(check_shareable(run, aliased));
  }
  STILLMAP_RETURN_IF_ERROR(wait_for_device());
  // Where the reservation was no demand, neither is the copy's.
  const bool stated = options_.reserve_bytes != 0;
  const std::size_t used = std::max({committed_end_ * page_, round_up(size(), page_), page_});
  const std::size_t wish = std::max(used, round_up(default_reservation(device_), page_));
  auto block = space().reserve_up_to(stated ? reserved() : wish, stated ? reserved() : used,
                                     page_ & (~page_ + 1), {}, options_.tag);
  if (!block) return tl::unexpected(block.error());
  auto child = std::make_unique<mapped_buffer>(device_, options_, access_, std::move(*block));
  const lock_guard child_lock(child->mutex_);  // nobody else's yet
  child->guests_ = guests_;
  const access_ptr readable = reading();
  remap_plan plan(remap_plan::of_buffer{}, readable);
  for (const slot_run run : full) {
    plan.grant(span(run), *readable);
    std::size_t slot = run.first;
    for (page_ptr &p : pages_of(run)) {
      plan.map(child->address() + slot++ * page_, std::move(p));
    }
  }
  if (!plan.empty()) {
    STILLMAP_RETURN_IF_ERROR(apply(std::move(plan)));
  }
  for (const slot_run run : full) {
    child->mark(run, true);
    for (std::size_t s = run.first; s < run.end(); ++s) {
      slots_[s] |= forked;
      child->slots_[s] |= forked;
    }
  }
  child->size_.store(size());
  return child;
}

status mapped_buffer::make_writable(std::size_t offset, std::size_t bytes, stream_ref stream) {
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(check_range(offset, bytes, false));
  if (bytes == 0) return {};
  const std::size_t first = offset / page_;
  const slot_run run{first, (offset + bytes - 1) / page_ - first + 1};
  STILLMAP_RETURN_IF_ERROR(check_shareable(run, 0));
  std::vector<std::size_t> shared;
  for (std::size_t s = run.first; s < run.end(); ++s) {
    if ((slots_[s] & forked) != 0) shared.push_back(s);
  }
  return shared.empty() ? status{} : unshare(shared, stream);
}

// Makes the pages at `slots` exclusive to this buffer and writable: pages that another buffer maps are
// copied. One plan changes all of them, or none.
status mapped_buffer::unshare(const std::vector<std::size_t> &slots, stream_ref stream) {
  std::vector<std::size_t> copies;
  remap_plan plan(remap_plan::of_buffer{}, access_);
  for (const std::size_t slot : slots) {
    const page_ptr now = pages_of({slot, 1}).front();
    if (shown_elsewhere(now)) {
      copies.push_back(slot);
    } else {
      plan.grant(span({slot, 1}), *access_);
    }
  }
  std::shared_ptr<address_block> scratch;
  remap_plan aside(remap_plan::of_buffer{}, access_);
  if (!copies.empty()) {
    STILLMAP_ASSIGN_OR_RETURN(
        scratch, space().reserve(copies.size() * page_, page_ & (~page_ + 1), {}, options_.tag));
  }
  for (std::size_t i = 0; i < copies.size(); ++i) {
    std::vector<page_ptr> page;
    page_pool &pool = *options_.pools[copies[i] % options_.pools.size()];
    if (const status got = pool.acquire(1, page); !got) {
      return tl::unexpected(of_request(got.error(), copies.size() * page_, i * page_));
    }
    aside.map(scratch->range().begin + i * page_, page.front());
    plan.unmap(span({copies[i], 1}));
    plan.map(address() + copies[i] * page_, std::move(page.front()));
  }
  if (scratch) {
    plan.unmap(scratch->range());
    STILLMAP_RETURN_IF_ERROR(apply(std::move(aside)));
  }
  status outcome;
  {
    const context_guard guard(device_.driver(), device_.context());
    outcome = guard.entered();
    for (std::size_t i = 0; outcome && i < copies.size(); ++i) {
      outcome = device_.driver().copy_on_device_async(
          scratch->range().begin + i * page_, address() + copies[i] * page_, page_, stream.get());
    }
    // The old pages are unmapped here: no stream may use these addresses any more.
    if (outcome && !copies.empty()) outcome = device_.driver().synchronize_context();
  }
  if (outcome) outcome = apply(std::move(plan));
  if (!outcome) {
    if (scratch) drop_scratch(std::move(scratch), stream);
    return outcome;
  }
  for (const std::size_t slot : slots) slots_[slot] &= static_cast<std::uint8_t>(~forked);
  stats_.bytes_copied += copies.size() * page_;
  return {};
}

// After a failure: copies to the scratch range may be pending, so it is retired behind the stream.
void mapped_buffer::drop_scratch(std::shared_ptr<address_block> scratch, stream_ref stream) {
  const virtual_range range = scratch->range();
  fence idle;
  const context_guard guard(device_.driver(), device_.context());
  const status waited =
      guard.entered() ? device_.driver().synchronize_stream(stream.get()) : guard.entered();
  if (!waited) {
    if (auto after = fence::after(device_, stream)) {
      idle = std::move(*after);
    } else {
      report_background_error(waited.error());
    }
  }
  // Unmapped by a later collect(): the caller cannot use this error.
  space().retire_again(std::move(scratch), range, std::move(idle));
  space().collect();
}

status mapped_buffer::splice(std::size_t offset, std::size_t bytes, buffer_impl &other,
                             std::size_t to_offset, release_fence idle) {
  auto *const to = dynamic_cast<mapped_buffer *>(&other);
  if (to == nullptr) {
    return make_error(errc::not_supported, "the other buffer is not made of pages");
  }
  if (to == this) {
    return make_error(errc::invalid_argument, "a buffer cannot be spliced into itself");
  }
  const scoped_lock lock(mutex_, to->mutex_);
  if (!(device_ == to->device_)) {
    return make_error(errc::invalid_argument, "the buffers are on different devices",
                      static_cast<std::uint64_t>(to->device_.ordinal()));
  }
  if (to->page_ != page_) {
    return make_error(errc::invalid_argument, "the buffers have different page sizes", to->page_,
                      page_, error_unit::bytes);
  }
  STILLMAP_RETURN_IF_ERROR(check_range(offset, bytes, true));
  STILLMAP_RETURN_IF_ERROR(to->check_range(to_offset, bytes, true));
  if (bytes == 0) return {};
  const slot_run from_run{offset / page_, bytes / page_};
  const slot_run to_run{to_offset / page_, bytes / page_};
  STILLMAP_RETURN_IF_ERROR(check_shareable(from_run, forked | aliased));
  if (!to->runs(to_run, true).empty()) {
    return make_error(errc::invalid_argument, "the target range is committed already", to_offset, 0,
                      error_unit::bytes);
  }
  fence after = idle != nullptr ? *idle : fence();
  if (idle == nullptr) {
    STILLMAP_RETURN_IF_ERROR(wait_for_device());
  }
  STILLMAP_RETURN_IF_ERROR(space().collect_range(to->span(to_run)));
  STILLMAP_ASSIGN_OR_RETURN(const auto passed, after.passed());
  remap_plan plan(remap_plan::of_buffer{}, to->access_);
  std::size_t slot = to_run.first;
  for (page_ptr &p : pages_of(from_run)) {
    to->keep_pool_of(p);
    plan.map(to->address() + slot++ * page_, std::move(p));
  }
  if (passed) plan.unmap(span(from_run));
  STILLMAP_RETURN_IF_ERROR(apply(std::move(plan)));
  if (!passed) {
    retire(from_run, after);
  }
  mark(from_run, false);
  to->mark(to_run, true);
  return {};
}

}  // namespace stillmap
