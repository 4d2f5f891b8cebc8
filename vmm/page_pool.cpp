#include "stillmap/vmm/page_pool.h"

#include <algorithm>
#include <new>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/device_state.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap {
// A pool that the program created, with a handle that keeps its device open.
struct owned_pool {
  owned_pool(device d, const page_pool_options &options)
      : on(std::move(d)), pool(*on.shared(), options) {}
  device on;
  page_pool pool;
};

page_pool::page_pool(device_state &d, const page_pool_options &options)
    : device_(d), options_(options) {
  properties_.location = options_.location.value_or(on_device(d.ordinal));
  properties_.exportable = options_.exportable;
  properties_.rdma = options_.rdma;
  if (options_.page_bytes == 0) options_.page_bytes = d.caps.page_bytes;
}

result<std::shared_ptr<page_pool>> page_pool::create(const device &d, page_pool_options options) {
  const operation_scope scope("page_pool::create");
  if (!d.capabilities().vmm) {
    return make_error(errc::not_supported, "this device cannot map physical pages");
  }
  if (options.exportable == handle_type::posix_fd && !d.capabilities().posix_fd_export) {
    return make_error(errc::not_supported, "this device cannot export pages as fds");
  }
  if (options.exportable == handle_type::fabric && !d.capabilities().fabric_export) {
    return make_error(errc::not_supported, "this device cannot export fabric handles");
  }
  if (options.rdma && !d.capabilities().rdma) {
    return make_error(errc::not_supported, "this device cannot map RDMA-capable pages");
  }
  const bool on_host = options.location && options.location->kind != location_kind::device;
  if (on_host && !d.capabilities().host_numa) {
    return make_error(errc::not_supported, "this driver cannot map host memory");
  }
  physical_properties wanted;
  wanted.location = options.location.value_or(on_device(d.ordinal()));
  wanted.exportable = options.exportable;
  wanted.rdma = options.rdma;
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_ASSIGN_OR_RETURN(const auto granularity, d.driver().granularity(wanted, false));
  if (options.page_bytes == 0) options.page_bytes = granularity;
  if (options.page_bytes % granularity != 0) {
    return make_error(errc::invalid_argument, "the page size is not a multiple of the granularity",
                      options.page_bytes, granularity, error_unit::bytes);
  }
  return with_host_memory([&]() -> result<std::shared_ptr<page_pool>> {
    const auto owner = std::make_shared<owned_pool>(d, options);
    const std::shared_ptr<page_pool> made(owner, &owner->pool);
    made->self_ = made;
    d.shared()->pools.add(made);
    return made;
  });
}

// Every page_ptr keeps the pool alive, so only retiring mappings are left, and mappings that the driver
// failed to unmap.
page_pool::~page_pool() {
  const operation_scope scope("page_pool::~page_pool");
  {
    const lock_guard lock(background_mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  background_wake_.notify_all();
  if (background_.joinable()) background_.join();
  // Twice: after this, a call that failed cannot be tried again.
  device_.space->collect(true);
  device_.space->collect(true);
  device_.space->abandon(*this);
  page_list all;
  {
    const lock_guard lock(mutex_);
    dying_ = true;
    all.append(ready_);
  }
  for (const page *p = waiting_.front(); p != nullptr; p = page_list::after(*p)) {
    report_if_failed(fence(p->idle_after_).wait());
  }
  all.append(waiting_);
  release_pages(all);
}

const driver &page_pool::driver() const {
  return *device_.drv;
}

std::size_t page_pool::location_bytes() const {
  return properties_.location == on_device(device_.ordinal) ? device_.total.bytes() : SIZE_MAX;
}

// Fails before the first page is created if the device cannot hold the pages.
status page_pool::check_size(std::size_t pages) const {
  if (pages <= location_bytes() / page_bytes()) return {};
  return make_error(errc::out_of_memory, "the request exceeds the device's memory",
                    pages * page_bytes(), location_bytes(), error_unit::bytes);
}

page_pool_stats page_pool::stats() const {
  const lock_guard lock(mutex_);
  page_pool_stats s = stats_;
  s.waiting = physical_size(waiting_.size() * options_.page_bytes);
  s.free = physical_size(ready_.size() * options_.page_bytes) + s.waiting;
  return s;
}

// The default pool belongs to the device's state, so a share of the device is a share of the pool.
std::shared_ptr<page_pool> page_pool::share() {
  if (auto own = self_.lock()) return own;
  return std::shared_ptr<page_pool>(device_.self.lock(), this);
}

status page_pool::acquire(std::size_t n, std::vector<page_ptr> &out,
                          std::optional<stream_ref> consumer) {
  const operation_scope scope("page_pool::acquire");
  STILLMAP_RETURN_IF_ERROR(check_size(n));
  STILLMAP_RETURN_IF_ERROR(with_host_memory([&]() -> status {
    out.reserve(out.size() + n);
    return {};
  }));
  page_list got, fresh;
  std::vector<page_ptr> stolen;
  if (const status supplied = supply(n, got, fresh, stolen, consumer); !supplied) {
    put_back(got);
    release_pages(fresh);
    return supplied;
  }
  got.append(fresh);
  while (page *const p = got.pop_front()) out.push_back(page_ptr(ledger_page_ptr(p)));
  for (page_ptr &p : stolen) out.push_back(std::move(p));
  const lock_guard lock(background_mutex_);
  if (keep_ready_ != 0) {
    keep_ready_due_ = true;
    if (!start_background_locked()) {
      const lock_guard stats_lock(mutex_);
      ++stats_.background_failures;
    }
  }
  return {};
}

// Creates `n` pages, or after an error fewer, which are in `made` as well. The counters follow once for
// all of them. Requires: the device's context is current.
status page_pool::make_pages(std::size_t n, page_list &made) {
  const std::size_t bytes = options_.page_bytes;
  std::size_t allowed = 0;
  {
    const lock_guard lock(mutex_);
    allowed = std::min(n, (options_.limit - std::min(options_.limit, created_bytes_)) / bytes);
    created_bytes_ += allowed * bytes;
  }
  std::size_t done = 0;
  status outcome;
  while (done < allowed && outcome) {
    std::unique_ptr<page> p(new (std::nothrow)
                                page(*this, physical_handle::none, bytes, properties_, false));
    if (p == nullptr) {
      outcome = host_out_of_memory();
    } else if (const auto handle = create_granted(bytes); !handle) {
      outcome = tl::unexpected(handle.error());
    } else {
      p->handle_ = *handle;
      p->granted_ = options_.quota != nullptr;
      made.push_back(*p.release());
      ++done;
    }
  }
  if (done != 0) device_.space->physical_created(done * bytes);
  const lock_guard lock(mutex_);
  created_bytes_ -= (allowed - done) * bytes;
  if (outcome && allowed < n) {
    const std::size_t left = options_.limit - std::min(options_.limit, std::size_t{created_bytes_});
    outcome = make_error(errc::out_of_memory, "the request exceeds what the pool's limit leaves",
                         n * bytes, left, error_unit::bytes);
  }
  stats_.pages_created += done;
  stats_.created += physical_size(done * bytes);
  stats_.peak = std::max(stats_.peak, stats_.created);
  return outcome;
}

result<physical_handle> page_pool::create_granted(std::size_t bytes) {
  if (options_.quota != nullptr) {
    const outside_scopes callback;
    STILLMAP_RETURN_IF_ERROR(options_.quota->reserve(bytes));
  }
  auto made = driver().create_physical(bytes, properties_);
  if (!made) give_up_grant(bytes);
  return made;
}

void page_pool::give_up_grant(std::size_t bytes) noexcept {
  if (options_.quota == nullptr) return;
  const outside_scopes callback;
  report_if_failed(options_.quota->release(bytes));
}

// Removes a page from the counters: its memory is released, or can never be.
void page_pool::forget(page *p) noexcept {
  device_.space->physical_released(p->bytes_);
  if (p->granted_) give_up_grant(p->bytes_);
  const lock_guard lock(mutex_);
  created_bytes_ -= p->bytes_;
  ++stats_.pages_released;
  stats_.created -= physical_size(p->bytes_);
  delete p;
}

result<page_ptr> page_pool::adopt(physical_memory memory) {
  const operation_scope scope("page_pool::adopt");
  if (memory.bytes() != options_.page_bytes) {
    return make_error(errc::invalid_argument, "the memory is not one page of this pool",
                      memory.bytes(), options_.page_bytes, error_unit::bytes);
  }
  if (memory.handle() == physical_handle::none) {
    return make_error(errc::invalid_argument, "the memory was moved from");
  }
  if (memory.device().shared().get() != &device_) {
    return make_error(errc::invalid_argument, "the memory belongs to another device",
                      static_cast<std::uint64_t>(memory.device().ordinal()),
                      static_cast<std::uint64_t>(device_.ordinal));
  }
  auto *const p = new (std::nothrow)
      page(*this, memory.handle(), options_.page_bytes, memory.properties(), memory.shared());
  if (p == nullptr) return host_out_of_memory();
  [[maybe_unused]] const physical_handle taken = std::move(memory).release();
  device_.space->physical_created(options_.page_bytes);
  {
    const lock_guard lock(mutex_);
    created_bytes_ += options_.page_bytes;
    stats_.created += physical_size(options_.page_bytes);
    stats_.peak = std::max(stats_.peak, stats_.created);
  }
  return page_ptr(ledger_page_ptr(p));
}

bool page_pool::has_fence(const page &p) const {
  const lock_guard lock(mutex_);
  return !p.idle_after_.trivially_passed();
}

void page_pool::add_fence(page &p, const fence &idle) {
  const auto joined = [&] {
    const lock_guard lock(mutex_);
    return p.idle_after_.join(idle);
  };
  if (!joined()) report_if_failed(fence(idle).wait());
}

void page_pool::give_back(page *p) noexcept {
  page_list surplus;
  {
    const lock_guard lock(mutex_);
    if (p->imported_ || p->properties_ != properties_) {
      surplus.push_back(*p);  // never reused
    } else if (p->idle_after_.trivially_passed()) {
      ready_.push_back(*p);
    } else {
      waiting_.push_back(*p);
    }
    while (ready_.size() * options_.page_bytes > options_.keep_free) {
      surplus.push_back(*ready_.pop_back());
    }
  }
  release_pages(surplus);
}

void page_pool::release_pages(page_list &pages) noexcept {
  if (pages.empty()) return;
  const context_guard guard(driver(), device_.context());
  while (page *const p = pages.pop_front()) {
    const status released =
        guard.entered() ? driver().release_physical(p->handle_) : guard.entered();
    if (!released) {
      report_background_error(released.error());
      const lock_guard lock(mutex_);
      if (!dying_ && !p->imported_ && p->properties_ == properties_) {
        ready_.push_back(*p);  // to be released another time
        continue;
      }
      p->granted_ = false;  // its memory still exists, so its quota stays reserved
    }
    forget(p);
  }
}

result<physical_size> page_pool::trim(std::size_t keep) {
  const operation_scope scope("page_pool::trim");
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  const std::uint64_t before = stats().pages_released;
  device_.space->collect();
  // Of what retired, the pool keeps no more than keep_free.
  physical_size freed((stats().pages_released - before) * options_.page_bytes);
  {
    const lock_guard lock(mutex_);
    STILLMAP_RETURN_IF_ERROR(find_passed_locked(SIZE_MAX));
  }
  for (;;) {
    page *p = nullptr;
    {
      const lock_guard lock(mutex_);
      if (ready_.empty() || ready_.size() * options_.page_bytes <= keep) break;
      p = ready_.pop_back();
    }
    if (const status released = driver().release_physical(p->handle_); !released) {
      const lock_guard lock(mutex_);
      ready_.push_back(*p);
      return tl::unexpected(released.error());
    }
    freed += physical_size(p->bytes_);
    forget(p);
  }
  return freed;
}

result<std::size_t> page_pool::creatable(std::size_t bytes) const {
  const operation_scope scope("page_pool::creatable");
  {
    const lock_guard lock(mutex_);
    bytes = std::min(bytes, options_.limit - std::min(options_.limit, std::size_t{created_bytes_}));
  }
  if (options_.quota != nullptr) {
    const outside_scopes callback;
    STILLMAP_ASSIGN_OR_RETURN(bytes, options_.quota->available(bytes));
  }
  return bytes / options_.page_bytes * options_.page_bytes;
}

status page_pool::prepare(std::size_t bytes) {
  const operation_scope scope("page_pool::prepare");
  for (;;) {
    const result<bool> more = prepare_one(bytes);
    if (more && !*more) return {};
    if (more) continue;
    error e = more.error();
    if (e.is(errc::out_of_memory) && e.code != std::errc::not_enough_memory && e.value != bytes) {
      e.value = bytes;
      e.limit += stats().ready().bytes();
    }
    return tl::unexpected(e);
  }
}

// Creates one page unless `bytes` are ready. False: they are.
result<bool> page_pool::prepare_one(std::size_t bytes) {
  const std::size_t pages = divide_up(bytes, options_.page_bytes);
  STILLMAP_RETURN_IF_ERROR(check_size(pages));
  {
    const lock_guard lock(mutex_);
    if (ready_.size() >= pages) return false;
  }
  const context_guard guard(driver(), device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  page_list made;
  STILLMAP_RETURN_IF_ERROR(make_pages(1, made));
  const lock_guard lock(mutex_);
  ready_.append(made);
  return true;
}

}  // namespace stillmap
