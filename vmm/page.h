// A page: one physical allocation, the unit of mapping and moving. Pages are reference-counted: each
// mapping holds a reference, and the last one returns the page to its pool. docs/pages.md#pages
// Page states: free (in a pool) -> referenced (no address) -> mapped (one or more addresses)
//              -> retiring (mapped until a fence has passed) -> free.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "stillmap/vmm/base/driver_types.h"
#include "stillmap/vmm/base/linked_list.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

class page;
class page_pool;

// What a page needs of the pool it returns to.
class page_owner {
 public:
  // The pool, kept alive. Empty while the pool is being destroyed.
  virtual std::shared_ptr<page_pool> share() = 0;
  // The last reference is gone.
  virtual void give_back(page *p) noexcept = 0;
  // The page is reusable only after `idle`, too. Where the host has no memory, waits for it.
  virtual void add_fence(page &p, const fence &idle) = 0;
  virtual bool has_fence(const page &p) const = 0;

 protected:
  ~page_owner() = default;
};

class page {
 public:
  std::uint64_t id() const { return id_; }  // unique in the process, never reused
  physical_handle handle() const { return handle_; }
  std::size_t bytes() const { return bytes_; }
  const physical_properties &properties() const { return properties_; }
  // Another process has the memory, too: the page is released when dropped, and never reused.
  bool imported() const { return imported_.load(std::memory_order_relaxed); }

 private:
  friend class page_pool;
  friend class ledger_page_ptr;
  friend class page_ptr;
  friend class address_space;
  page(page_owner &owner, physical_handle handle, std::size_t bytes, physical_properties properties,
       bool imported);

  std::uint64_t id_;
  physical_handle handle_;
  std::size_t bytes_;
  physical_properties properties_;
  std::atomic<bool> imported_;
  bool granted_ = false;  // counted by the pool's quota
  std::atomic<std::uint32_t> references_{0};
  page_owner *owner_;
  fence idle_after_;        // under the pool's mutex, unless only one thread has the page
  list_links<page> links_;  // in a list of the pool
};

// A counted reference that does not keep the pool alive. The ledger holds these, so that a device does
// not keep itself alive. All other owners hold a page_ptr.
class ledger_page_ptr {
 public:
  ledger_page_ptr() = default;
  explicit ledger_page_ptr(page *p) : page_(p) { acquire(); }
  ledger_page_ptr(const ledger_page_ptr &o) : page_(o.page_) { acquire(); }
  ledger_page_ptr(ledger_page_ptr &&o) noexcept : page_(std::exchange(o.page_, nullptr)) {}
  ledger_page_ptr &operator=(ledger_page_ptr o) noexcept {
    std::swap(page_, o.page_);
    return *this;
  }
  ~ledger_page_ptr() { drop(); }

  explicit operator bool() const { return page_ != nullptr; }
  const page *operator->() const { return page_; }
  bool operator==(const ledger_page_ptr &o) const { return page_ == o.page_; }
  std::uint32_t use_count() const {
    return page_ ? page_->references_.load(std::memory_order_acquire) : 0;
  }

 private:
  friend class page_pool;
  friend class page_ptr;
  friend class address_space;
  void acquire() {
    if (page_) page_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void drop() noexcept;

  page *page_ = nullptr;
};

// A counted reference to a page that keeps the page's pool alive.
// Threads: copies are independent; one object is externally synchronised.
class page_ptr {
 public:
  page_ptr() = default;
  explicit page_ptr(ledger_page_ptr share);
  page_ptr(const page_ptr &) = default;
  page_ptr(page_ptr &&) noexcept = default;
  // Swaps: the old reference must be dropped before the pool, of which it may hold the last share.
  page_ptr &operator=(page_ptr o) noexcept {
    std::swap(home_, o.home_);
    std::swap(share_, o.share_);
    return *this;
  }
  ~page_ptr() = default;

  explicit operator bool() const { return static_cast<bool>(share_); }
  const page *operator->() const { return share_.page_; }
  const page &operator*() const { return *share_.page_; }
  bool operator==(const page_ptr &o) const { return share_ == o.share_; }
  const ledger_page_ptr &share() const { return share_; }

  const std::shared_ptr<page_pool> &pool() const { return home_; }  // the pool it returns to

  // The number of references, mappings included; another thread may change it at any time.
  std::uint32_t use_count() const { return share_.use_count(); }

  // Sets whether another process has the memory, too. Requires: the page is not being dropped.
  void set_imported(bool imported) const;

  // Drops this reference. The page is reusable only after `idle`. The host waits for it where it has
  // no memory to join it with another fence of the page.
  void retire(const fence &idle);

 private:
  friend class page_pool;
  std::shared_ptr<page_pool> home_;  // before share_: outlives it
  ledger_page_ptr share_;
};

}  // namespace stillmap
