// Retiring mappings of address_space: unmapped when their fence has passed, taken back by their owner
// without a driver call, or deprived of their pages for use elsewhere.
#include <utility>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/internal/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap {

// Whether a retiring mapping holds the only reference to its page, without a fence of work that used
// the page at another address. Requires mutex_.
bool address_space::is_exclusive(const entry &e) {
  return e.backing.use_count() == 1 && !e.backing.page_->owner_->has_fence(*e.backing.page_);
}

status address_space::retire(std::shared_ptr<address_block> block, virtual_range range,
                             fence idle) {
  STILLMAP_ASSIGN_OR_RETURN(const auto passed, idle.passed());
  if (passed) {
    remap_plan plan({});
    plan.unmap(range);
    return apply(std::move(plan));
  }
  const std::lock_guard lock(mutex_);
  std::size_t covered = 0;
  for (auto it = lower_locked(range.begin);
       it != mappings_.end() && it->first < range.end().value(); ++it) {
    if (it->second.retiring || it->first + it->second.bytes > range.end().value()) {
      return make_error(errc::invalid_argument, "address_space::retire",
                        "the range is not made of whole live mappings", range.begin.value(), 0,
                        error_unit::address);
    }
    covered += it->second.bytes;
  }
  if (covered == 0) {
    return make_error(errc::invalid_argument, "address_space::retire",
                      "nothing is mapped in the range", range.begin.value(), 0,
                      error_unit::address);
  }
  if (set_retiring_locked(range)) retiring_.add({std::move(block), range, std::move(idle)});
  return {};
}

result<std::size_t> address_space::revive(virtual_range range,
                                          const std::vector<access_grant> &access,
                                          std::optional<stream_ref> consumer, fence &idle) {
  virtual_range back{range.begin, 0};
  std::shared_ptr<address_block> block;
  {
    // Only ranges in retiring_: another thread may be unmapping the others.
    const std::lock_guard lock(mutex_);
    for (auto it = lower_locked(range.begin);
         it != mappings_.end() && it->first == back.end().value() &&
         it->first < range.end().value() && it->second.retiring;
         ++it) {
      const retiree *const r = retiring_.at(device_address(it->first));
      if (r == nullptr || !is_exclusive(it->second) || *it->second.access != access) {
        break;
      }
      idle.join(r->idle);
      block = r->block;
      it->second.retiring = false;
      --stats_.retiring_mappings;
      back.bytes += it->second.bytes;
    }
    if (back.empty()) return std::size_t{0};
    retiring_.cut(back);
  }
  const status ordered =
      consumer ? idle.make_wait(device(device_.self.lock()), *consumer) : fence(idle).wait();
  if (!ordered) {
    retire_again(std::move(block), back, idle);
    return tl::unexpected(ordered.error());
  }
  return back.bytes;
}

void address_space::retire_again(std::shared_ptr<address_block> block, virtual_range range,
                                 fence idle) {
  const std::lock_guard lock(mutex_);
  if (set_retiring_locked(range)) retiring_.add({std::move(block), range, std::move(idle)});
}

// Removes suspended places in `range`, and marks the rest as retiring. False: there was no rest.
bool address_space::set_retiring_locked(virtual_range range) {
  forget_suspended_locked(range);
  bool any = false;
  for (auto it = lower_locked(range.begin);
       it != mappings_.end() && it->first < range.end().value(); ++it) {
    it->second.retiring = true;
    ++stats_.retiring_mappings;
    any = true;
  }
  return any;
}

status address_space::steal_retiring(std::size_t n, std::size_t page_bytes,
                                     const physical_properties &properties, stream_ref consumer,
                                     std::vector<page_ptr> &out) {
  std::vector<ledger_page_ptr> found;
  fence idle;
  {
    const std::lock_guard lock(mutex_);
    for (const retiree &r : retiring_) {
      bool any = false;
      for (auto it = lower_locked(r.range.begin);
           found.size() < n && it != mappings_.end() && it->first < r.range.end().value(); ++it) {
        entry &e = it->second;
        if (!e.retiring || !is_exclusive(e) || e.backing->imported() || e.bytes != page_bytes ||
            e.backing->properties() != properties) {
          continue;
        }
        found.push_back(e.backing);
        any = true;
      }
      if (any) idle.join(r.idle);
      if (found.size() == n) break;
    }
  }
  const status ordered = idle.make_wait(device(device_.self.lock()), consumer);
  if (!ordered) return ordered;
  for (ledger_page_ptr &p : found) out.emplace_back(std::move(p));
  return {};
}

// Unmaps the ranges of `due` that have passed, and returns the rest to the list. Returns the bytes
// unmapped.
std::size_t address_space::collect_from(std::vector<retiree> &due, bool wait, status &outcome) {
  std::size_t bytes = 0;
  for (retiree &r : due) {
    bool gone = false;
    result<bool> passed = r.idle.passed();
    if (passed && !*passed && wait) {
      const status waited = r.idle.wait();
      passed = waited ? result<bool>(true) : tl::unexpected(waited.error());
    }
    if (!passed) {
      outcome = tl::unexpected(passed.error());
    } else if (*passed) {
      remap_plan plan({});
      plan.unmap(r.range);
      plan.of_retired_ = true;
      const status unmapped = apply(std::move(plan));
      gone = unmapped.has_value();
      if (gone) bytes += r.range.bytes;
      if (!unmapped && mappings(r.range).empty()) {
        gone = true;  // removed by abandon()
      } else if (!unmapped) {
        outcome = tl::unexpected(unmapped.error());
      }
    }
    if (!gone) {
      const std::lock_guard lock(mutex_);
      retiring_.add(std::move(r));
    }
  }
  return bytes;
}

std::size_t address_space::collect(bool wait) {
  std::unique_lock collecting(collect_mutex_, std::defer_lock);
  if (wait) {
    collecting.lock();
  } else if (!collecting.try_lock()) {
    return 0;  // another thread is collecting
  }
  std::vector<retiree> due;
  {
    const std::lock_guard lock(mutex_);
    due = retiring_.take_all();
  }
  status outcome;
  const std::size_t bytes = collect_from(due, wait, outcome);
  report_if_failed(outcome);
  return bytes;
}

void address_space::abandon_retiring() noexcept {
  retiring_list left;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  std::swap(left, retiring_);
}

status address_space::collect_range(virtual_range range) {
  const std::lock_guard collecting(collect_mutex_);
  std::vector<retiree> due;
  {
    const std::lock_guard lock(mutex_);
    due = retiring_.take(range);
  }
  status outcome;
  collect_from(due, true, outcome);
  return outcome;
}

}  // namespace stillmap
