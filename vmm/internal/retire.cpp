// Retiring mappings of address_space: unmapped when their fence has passed, taken back by their owner
// without a driver call, or deprived of their pages for use elsewhere. Only revive() and
// steal_retiring(), which may fail, take host memory.
#include <algorithm>
#include <utility>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/internal/ledger.h"
#include "stillmap/vmm/internal/removal.h"

namespace stillmap {

// Whether a retiring mapping holds the only reference to its page, without a fence of work that used
// the page at another address.
bool address_space::is_exclusive_locked(const mapping_entry &e) const {
  return e.backing.use_count() == 1 && !e.backing.page_->owner_->has_fence(*e.backing.page_);
}

status address_space::retire(std::shared_ptr<address_block> block, virtual_range range,
                             fence idle) {
  const operation_scope scope("address_space::retire");
  const auto no = [&](const char *why) {
    return make_error(errc::invalid_argument, why, range.begin.value(), 0, error_unit::address);
  };
  STILLMAP_ASSIGN_OR_RETURN(const auto passed, idle.passed());
  removal now(*this, range);
  {
    const lock_guard lock(mutex_);
    const mapping_index &all = ledger_->mappings;
    if (const mapping_entry *const before = all.before(range.begin);
        before != nullptr && before->range.overlaps(range)) {
      return no("the range is not made of whole live mappings");
    }
    std::size_t covered = 0, live = 0;
    for (const mapping_entry *e = all.from(range.begin);
         e != nullptr && e->range.begin < range.end(); e = all.after(*e)) {
      if (e->retiring || !range.contains(e->range)) {
        return no("the range is not made of whole live mappings");
      }
      covered += e->range.bytes;
      if (e->suspended_by == 0) live += e->range.bytes;
    }
    if (covered == 0) return no("nothing is mapped in the range");
    if (!passed || live == 0) {
      set_retiring_locked(block, range, idle);
      return {};
    }
    gather_live_locked(range, now);
  }
  return now.run();
}

status address_space::unmap(virtual_range range) {
  const operation_scope scope("address_space::unmap");
  removal now(*this, range);
  {
    const lock_guard lock(mutex_);
    if (gather_live_locked(range, now) == 0) {
      forget_suspended_locked(range);
      return {};
    }
    if (!range.contains(now.range())) {
      return make_error(errc::invalid_argument, "the range cuts a mapping", range.begin.value(), 0,
                        error_unit::address);
    }
  }
  return now.run();
}

// Adds the live mappings that begin in `range` to `to`. Returns their number.
std::size_t address_space::gather_live_locked(virtual_range range, removal &to) {
  std::size_t n = 0;
  const mapping_index &all = ledger_->mappings;
  for (mapping_entry *e = all.from(range.begin); e != nullptr && e->range.begin < range.end();
       e = all.after(*e)) {
    if (e->retiring || e->suspended_by != 0) continue;
    to.add_locked(*this, *e);
    ++n;
  }
  return n;
}

result<std::size_t> address_space::revive(virtual_range range,
                                          const std::vector<access_grant> &access,
                                          std::optional<stream_ref> consumer, fence &idle) {
  const operation_scope scope("address_space::revive");
  virtual_range back{range.begin, 0};
  std::shared_ptr<address_block> block;
  fence all = idle;
  {
    // Only entries in retiring_: another thread may be unmapping the others.
    const lock_guard lock(mutex_);
    const mapping_index &mappings = ledger_->mappings;
    std::uint64_t joined = 0;
    for (const mapping_entry *e = mappings.from(range.begin);
         e != nullptr && e->range.begin == back.end() && back.end() < range.end();
         e = mappings.after(*e)) {
      if (!e->retiring || e->retired == 0 || (block && e->block != block) ||
          !is_exclusive_locked(*e) || *e->access != access) {
        break;
      }
      if (std::exchange(joined, e->retired) != e->retired) {
        STILLMAP_RETURN_IF_ERROR(all.join(e->idle));
      }
      block = e->block;
      back.bytes += e->range.bytes;
    }
    if (back.empty()) return std::size_t{0};
    for (mapping_entry *e = mappings.from(back.begin); e != nullptr && e->range.begin < back.end();
         e = mappings.after(*e)) {
      ledger_->retiring.remove(*e);
      e->retiring = false;
      e->block.reset();
      e->idle = fence();
      --stats_.retiring_mappings;
    }
  }
  idle = all;
  const status ordered =
      consumer ? idle.make_wait(device(device_.self.lock()), *consumer) : all.wait();
  if (!ordered) {
    retire_again(std::move(block), back, idle);
    return tl::unexpected(ordered.error());
  }
  return back.bytes;
}

void address_space::retire_again(std::shared_ptr<address_block> block, virtual_range range,
                                 fence idle) noexcept {
  const lock_guard lock(mutex_);
  set_retiring_locked(block, range, idle);
}

// Removes suspended places in `range`, and marks the rest as retiring.
void address_space::set_retiring_locked(const std::shared_ptr<address_block> &block,
                                        virtual_range range, const fence &idle) {
  forget_suspended_locked(range);
  const std::uint64_t now = next_retired_++;
  const mapping_index &all = ledger_->mappings;
  for (mapping_entry *e = all.from(range.begin); e != nullptr && e->range.begin < range.end();
       e = all.after(*e)) {
    if (e->retiring) continue;
    e->retiring = true;
    e->retired = now;
    e->block = block;
    e->idle = idle;
    ledger_->retiring.push_back(*e);
    ++stats_.retiring_mappings;
  }
}

status address_space::steal_retiring(std::size_t n, std::size_t page_bytes,
                                     const physical_properties &properties, stream_ref consumer,
                                     std::vector<page_ptr> &out) {
  return with_host_memory("address_space::steal_retiring", [&]() -> status {
    std::vector<ledger_page_ptr> found;
    fence idle;
    {
      const lock_guard lock(mutex_);
      found.reserve(std::min(n, ledger_->retiring.size()));
      std::uint64_t joined = 0;
      for (const mapping_entry *e = ledger_->retiring.front(); e != nullptr && found.size() < n;
           e = mapping_list::after(*e)) {
        if (!is_exclusive_locked(*e) || e->backing->imported() || e->range.bytes != page_bytes ||
            e->backing->properties() != properties) {
          continue;
        }
        if (std::exchange(joined, e->retired) != e->retired) {
          STILLMAP_RETURN_IF_ERROR(idle.join(e->idle));
        }
        found.push_back(e->backing);
      }
    }
    out.reserve(out.size() + found.size());
    STILLMAP_RETURN_IF_ERROR(idle.make_wait(device(device_.self.lock()), consumer));
    for (ledger_page_ptr &p : found) out.emplace_back(std::move(p));
    return {};
  });
}

// Unmaps `run` if its fence has passed, or returns it to the list. Returns the bytes unmapped.
std::size_t address_space::collect_run(removal &run, bool wait, status &outcome) {
  fence idle = run.idle();
  const std::size_t bytes = run.range().bytes;
  result<bool> passed = idle.passed();
  if (passed && !*passed && wait) {
    passed = idle.wait().map([] { return true; });
  }
  if (!passed) {
    outcome = tl::unexpected(passed.error());
  } else if (*passed) {
    const status unmapped = run.run();
    if (unmapped) return bytes;
    outcome = unmapped;
  }
  const lock_guard lock(mutex_);
  run.retire_again_locked(*this);
  return 0;
}

std::size_t address_space::collect(bool wait) {
  if (wait) {
    collect_mutex_.lock();
  } else if (!collect_mutex_.try_lock()) {
    return 0;  // another thread is collecting
  }
  const lock_guard collecting(collect_mutex_, std::adopt_lock);
  std::uint64_t later = 0;  // what is retired, or returned to the list, from now on
  std::size_t bytes = 0;
  status outcome;
  for (bool first = true;; first = false) {
    removal run(*this);
    {
      const lock_guard lock(mutex_);
      if (first) later = next_retired_;
      mapping_entry *const oldest = ledger_->retiring.front();
      if (oldest == nullptr || oldest->retired >= later) break;
      run.take_retiring_locked(*this, *oldest);
    }
    bytes += collect_run(run, wait, outcome);
  }
  report_if_failed(outcome);
  return bytes;
}

status address_space::collect_range(virtual_range range) {
  const lock_guard collecting(collect_mutex_);
  status outcome;
  for (device_address next = range.begin; next < range.end();) {
    removal run(*this);
    {
      const lock_guard lock(mutex_);
      mapping_entry *const found = retiring_in_locked({next, range.end() - next});
      if (found == nullptr) break;
      run.take_retiring_locked(*this, *found);
    }
    next = run.range().end();
    collect_run(run, true, outcome);
  }
  return outcome;
}

// The first entry of retiring_ in `range`, by address.
mapping_entry *address_space::retiring_in_locked(virtual_range range) {
  const mapping_index &all = ledger_->mappings;
  mapping_entry *e = all.before(range.begin);
  if (e == nullptr || !e->range.overlaps(range)) e = all.from(range.begin);
  for (; e != nullptr && e->range.begin < range.end(); e = all.after(*e)) {
    if (e->retiring && e->retired != 0) return e;
  }
  return nullptr;
}

}  // namespace stillmap
