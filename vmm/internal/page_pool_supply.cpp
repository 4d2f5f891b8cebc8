// Where page_pool::acquire finds pages.
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap {

// Takes `n` pages, or after an error fewer, which the caller returns.
status page_pool::supply(std::size_t n, page_list &got, page_list &fresh,
                         std::vector<page_ptr> &stolen, std::optional<stream_ref> consumer) {
  STILLMAP_RETURN_IF_ERROR(take_free(n, got));
  if (got.size() == n) return {};
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  // Unmapping is cheaper than creating a page, and leaves the device's memory to others.
  if (device_.space->collect() != 0) STILLMAP_RETURN_IF_ERROR(take_free(n, got));
  const auto have = [&] { return got.size() + fresh.size() + stolen.size(); };
  while (have() < n) {
    status made = make_pages(n - have(), fresh);
    if (made) continue;
    error &e = made.error();
    // Pages of others do not help against a lack of host memory.
    if (!e.is(errc::out_of_memory) || e.code == std::errc::not_enough_memory) {
      return tl::unexpected(e);
    }
    const bool device_short = e.code.category() == cuda_category();
    if (device_short && free_others((n - have()) * options_.page_bytes) != 0) continue;
    const std::size_t before = have();
    STILLMAP_RETURN_IF_ERROR(take_waiting(n - before, got, stolen, consumer));
    if (have() == before) {
      // Of the whole request, and of what there was for it.
      e.value = n * options_.page_bytes;
      e.limit += have() * options_.page_bytes;
      return tl::unexpected(e);
    }
  }
  return {};
}

// Takes ready pages, oldest first: pages that were returned together are taken together, so that
// physically adjacent pages stay adjacent.
status page_pool::take_free(std::size_t n, page_list &got) {
  const lock_guard lock(mutex_);
  STILLMAP_RETURN_IF_ERROR(find_passed_locked(n));
  while (got.size() < n && !ready_.empty()) {
    got.push_back(*ready_.pop_front());
    ++stats_.pages_reused;
  }
  return {};
}

// Moves pages whose fence has passed to the ready ones, until `n` are ready.
status page_pool::find_passed_locked(std::size_t n) {
  for (std::size_t i = waiting_.size(); i != 0 && ready_.size() < n; --i) {
    page *const p = waiting_.pop_front();
    const auto passed = p->idle_after_.passed();
    (passed && *passed ? ready_ : waiting_).push_back(*p);
    if (!passed) return tl::unexpected(passed.error());
  }
  return {};
}

// Returns pages that take_free or take_waiting took.
void page_pool::put_back(page_list &pages) {
  const lock_guard lock(mutex_);
  while (page *const p = pages.pop_front()) {
    (p->idle_after_.trivially_passed() ? ready_ : waiting_).push_back(*p);
    --stats_.pages_reused;
  }
}

// When memory is short: takes up to `more` pages that queued work may still use, in the order of cost:
// after a stream wait, after a host wait, and last the pages of retiring mappings.
status page_pool::take_waiting(std::size_t more, page_list &got, std::vector<page_ptr> &stolen,
                               std::optional<stream_ref> consumer) {
  address_space &space = *device_.space;
  const std::size_t wanted = got.size() + stolen.size() + more;
  if (consumer) {
    STILLMAP_RETURN_IF_ERROR(
        space.steal_retiring(more, page_bytes(), properties_, *consumer, stolen));
  }
  while (got.size() + stolen.size() < wanted) {
    page *p = nullptr;
    {
      const lock_guard lock(mutex_);
      p = waiting_.pop_front();
      if (p == nullptr) break;
      ++stats_.pages_reused;
      if (!consumer) ++stats_.host_waits;
    }
    const status ordered = consumer
                               ? p->idle_after_.make_wait(device(device_.self.lock()), *consumer)
                               : p->idle_after_.wait();
    got.push_back(*p);  // also when ordering failed: it goes back with the others
    if (!ordered) return ordered;
    if (!consumer) p->idle_after_ = fence();
  }
  if (got.size() + stolen.size() < wanted && space.stats().retiring_mappings != 0) {
    {
      const lock_guard lock(mutex_);
      ++stats_.host_waits;
    }
    space.collect(true);
    return take_free(wanted - stolen.size(), got);
  }
  return {};
}

// Releases ready pages of the device's other pools at the same location, up to `bytes`. Neither a stream
// nor the host waits for them. Returns the bytes released.
std::size_t page_pool::free_others(std::size_t bytes) {
  std::size_t freed = 0;
  std::size_t i = 0;
  while (const auto other = freed < bytes ? device_.pools.next(i) : nullptr) {
    if (other.get() == this || !(other->properties_.location == properties_.location)) continue;
    const std::size_t ready = other->stats().ready().bytes();
    const std::size_t wanted = bytes - freed;
    // A page that fails to be released stays in its pool; acquire() reports its own error.
    if (const auto gone = other->trim(ready > wanted ? ready - wanted : 0)) freed += gone->bytes();
  }
  return freed;
}

}  // namespace stillmap
