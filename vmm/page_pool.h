// Free pages of one size, location and handle type. A warm pool saves growing buffers the cost of
// cuMemCreate; a page freed under a fence waits in the pool without blocking the host.
// Lock order: background_mutex_, mutex_. Under mutex_ at most an event is queried or given back, which
// never blocks. docs/pages.md#pages
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "stillmap/vmm/base/linked_list.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/memory_quota.h"
#include "stillmap/vmm/page.h"

namespace stillmap {

struct page_pool_options {
  std::size_t page_bytes = 0;                 // 0: the granularity; otherwise a multiple of it
  std::optional<memory_location> location{};  // default: the device's own memory
  handle_type exportable = handle_type::none;
  bool rdma = false;
  std::size_t keep_free = std::size_t{1} << 30;  // free bytes kept; more are released
  std::size_t limit = SIZE_MAX;                  // most bytes created at once
  std::shared_ptr<memory_quota> quota{};         // asked before each page
};

struct page_pool_stats {
  physical_size created;  // all pages of this pool, in use or free
  physical_size peak;
  physical_size free;                     // ready, or waiting for a fence
  physical_size waiting;                  // part of `free`: behind a fence not yet seen passed
  std::uint64_t pages_created = 0;        // ever
  std::uint64_t pages_released = 0;       // ever
  std::uint64_t pages_reused = 0;         // handed out without creating
  std::uint64_t host_waits = 0;           // times the host had to wait for a fence
  std::uint64_t background_failures = 0;  // failures of keep_ready()

  physical_size ready() const { return physical_size(free.bytes() - waiting.bytes()); }
};

class page_pool final : private page_owner {
 public:
  // Errors: invalid_argument (page_bytes not a multiple of the granularity: limit = granularity),
  //         not_supported (the device cannot make such pages, or has no VMM).
  static result<std::shared_ptr<page_pool>> create(const device &d, page_pool_options options = {});
  // For device_state, which owns the default pool. Other callers use create().
  page_pool(device_state &d, const page_pool_options &options);
  // Waits for what still retires on the device.
  ~page_pool();
  page_pool(const page_pool &) = delete;
  page_pool &operator=(const page_pool &) = delete;

  std::size_t page_bytes() const { return options_.page_bytes; }
  const physical_properties &properties() const { return properties_; }
  // The memory that the pool's pages lie in, in bytes: its own device's. SIZE_MAX where it is not
  // known (host memory, another device's).
  std::size_t location_bytes() const;
  page_pool_stats stats() const STILLMAP_EXCLUDES(mutex_);

  // Appends `n` pages to `out`, all or none. Order of preference: free pages; pages of retiring
  // mappings whose fence has passed; new pages. When memory is short, free pages of the device's
  // other pools are released; then come pages whose fence has not passed: `consumer` waits for them
  // where given, else the host waits. Contents are unspecified (new pages are zero on every driver
  // seen, but CUDA does not guarantee it).
  // Ensures:  failure: `out` is unchanged, and no page is lost.
  // Errors:   out_of_memory (value = bytes requested, limit = bytes that there were for it: pages found,
  //           and what the driver, the pool's limit or the quota leave; all memory of the device where
  //           the request exceeds it; or of the host), device_lost.
  // Threads:  safe.
  // Cost:     none when warm; else one create per page, and where mappings retire one query per
  //           fence and one unmap per run whose fence has passed.
  status acquire(std::size_t n, std::vector<page_ptr> &out,
                 std::optional<stream_ref> consumer = std::nullopt)
      STILLMAP_EXCLUDES(background_mutex_, mutex_);

  // Takes ownership of `memory` as one page of this pool. Imported and retained memory, which has
  // another owner too, is released instead of pooled when the page is dropped.
  // Errors: invalid_argument (the size is not the pool's page size: limit; moved from; another
  //         device's).
  result<page_ptr> adopt(class physical_memory memory);

  // How many of `bytes` the pool's limit and its quota let it create now, as whole pages: a hint, as others create, too.
  // Errors: the quota's. Cost: one memory_quota::available().
  result<std::size_t> creatable(std::size_t bytes) const STILLMAP_EXCLUDES(mutex_);

  // Creates pages until `bytes` are free and ready.
  // Errors: as acquire; pages created before the failure stay in the pool.
  status prepare(std::size_t bytes);

  // Keeps at least `bytes` free and ready from a background thread; 0 stops it, and waits for the page
  // that it may be creating. A failure is counted
  // (stats().background_failures) and tried again at the next acquire().
  void keep_ready(std::size_t bytes);

  // Releases free pages until at most `keep` bytes are free: also those whose fence has passed since they
  // were given back, and those of retiring mappings on the device. Pages behind a fence stay.
  // Returns the amount that the pool released meanwhile.
  // Errors: the driver's; the page concerned stays in the pool.
  // Cost:   one release per page; where pages wait or mappings retire, as acquire().
  result<physical_size> trim(std::size_t keep = 0) STILLMAP_EXCLUDES(mutex_);

  // Queues `run` on the pool's background thread, which blocks asynchronous signals and runs one job at
  // a time. cancel_background removes the jobs of `owner` and waits for one that is running: call it
  // before `owner` ends.
  // Errors: out_of_memory (of the host), or why the thread cannot be started.
  status in_background(const void *owner, std::function<void()> run);
  void cancel_background(const void *owner) noexcept;

  const stillmap::driver &driver() const;

 private:
  struct job {
    const void *owner;
    std::function<void()> run;
  };
  using page_list = linked_list<page, &page::links_>;

  std::shared_ptr<page_pool> share() override;
  void give_back(page *p) noexcept override STILLMAP_EXCLUDES(mutex_);
  void add_fence(page &p, const fence &idle) override STILLMAP_EXCLUDES(mutex_);
  bool has_fence(const page &p) const override STILLMAP_EXCLUDES(mutex_);
  status check_size(std::size_t pages) const;
  status take_free(std::size_t n, page_list &got) STILLMAP_EXCLUDES(mutex_);
  status find_passed_locked(std::size_t n) STILLMAP_REQUIRES(mutex_);
  void put_back(page_list &pages) STILLMAP_EXCLUDES(mutex_);
  status take_waiting(std::size_t more, page_list &got, std::vector<page_ptr> &stolen,
                      std::optional<stream_ref> consumer) STILLMAP_EXCLUDES(mutex_);
  status supply(std::size_t n, page_list &got, page_list &fresh, std::vector<page_ptr> &stolen,
                std::optional<stream_ref> consumer) STILLMAP_EXCLUDES(mutex_);
  status make_pages(std::size_t n, page_list &made) STILLMAP_EXCLUDES(mutex_);
  result<bool> prepare_one(std::size_t bytes) STILLMAP_EXCLUDES(mutex_);
  result<physical_handle> create_granted(std::size_t bytes);
  void give_up_grant(std::size_t bytes) noexcept;
  void forget(page *p) noexcept STILLMAP_EXCLUDES(mutex_);
  std::size_t free_others(std::size_t bytes);
  void release_pages(page_list &pages) noexcept STILLMAP_EXCLUDES(mutex_);
  status start_background_locked() noexcept STILLMAP_REQUIRES(background_mutex_);
  void run_background() STILLMAP_EXCLUDES(background_mutex_, mutex_);

  device_state &device_;
  // Set before anybody else has the pool:
  page_pool_options options_;
  physical_properties properties_;
  std::weak_ptr<page_pool> self_;  // empty for the device's own pool, which lives with the device

  mutable mutex mutex_;
  page_list ready_ STILLMAP_GUARDED_BY(mutex_);  // lists, so that returning a page takes no memory
  page_list waiting_ STILLMAP_GUARDED_BY(mutex_);  // behind a fence not yet seen passed
  bool dying_ STILLMAP_GUARDED_BY(mutex_) = false;
  page_pool_stats stats_ STILLMAP_GUARDED_BY(mutex_);
  // Pages being created right now included.
  std::uint64_t created_bytes_ STILLMAP_GUARDED_BY(mutex_) = 0;

  mutex background_mutex_;
  condition_variable background_wake_, background_idle_;
  std::deque<job> jobs_ STILLMAP_GUARDED_BY(background_mutex_);
  const void *running_for_ STILLMAP_GUARDED_BY(background_mutex_) = nullptr;
  std::size_t keep_ready_ STILLMAP_GUARDED_BY(background_mutex_) = 0;
  bool keep_ready_due_ STILLMAP_GUARDED_BY(background_mutex_) = false;
  bool creating_ STILLMAP_GUARDED_BY(background_mutex_) = false;
  bool stopping_ STILLMAP_GUARDED_BY(background_mutex_) = false;
  std::thread background_ STILLMAP_GUARDED_BY(background_mutex_);
};

}  // namespace stillmap
