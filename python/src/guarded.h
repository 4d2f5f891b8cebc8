// An owner of device memory inside a Python object: locked, closable, and counted where other
// libraries see its memory.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "python/src/errors.h"
#include "python/src/gil.h"

namespace stillmap::python {

// Threads: safe. The lock is taken without the GIL, and never the GIL with the lock.
template <class Owner>
class guarded {
 public:
  // `class_name`: of the Python class, for messages; a literal.
  guarded(const char *class_name, Owner owner)
      : class_name_(class_name), owner_(std::move(owner)) {}
  guarded(const guarded &) = delete;
  guarded &operator=(const guarded &) = delete;
  ~guarded() {
    if (!owner_) return;
    if (forked_after_use()) {
      forget();
    } else {
      const released_gil released;
      owner_.reset();
    }
  }

  // Runs `act` on the owner, which returns a result or a status, without the GIL and locked.
  // Raises its error, and InvalidArgumentError after close().
  template <class Act>
  auto with(Act act) const {
    auto done = without_gil([&]() -> std::invoke_result_t<Act, Owner &> {
      const std::lock_guard lock(mutex_);
      if (!owner_)
        return make_python_error(errc::invalid_argument, class_name_, "the object is closed");
      return act(*owner_);
    });
    if constexpr (std::is_same_v<decltype(done), status>) {
      check(done);
    } else {
      return value_of(std::move(done));
    }
  }

  // For `act`: fails with busy where views of the memory are exported.
  status refuse_exported() const {
    const int views = exports_.load(std::memory_order_acquire);
    if (views == 0) return {};
    return make_python_error(
        errc::busy, class_name_,
        "views of the memory are exported, which this call would invalidate: delete "
        "them first",
        static_cast<std::uint64_t>(views), 0, error_unit::items);
  }
  // For `act`: fails where holding `bytes` would change the address of a buffer, unless that is asked
  // for by name (`relocate`) and no view is exported. Not all users of an address are counted.
  template <class Buffer>
  status refuse_move(const char *op, const Buffer &b, std::size_t bytes, bool relocate) const {
    const std::size_t limit = b.in_place() ? b.reserved() : b.capacity();
    if (bytes <= limit || unseen(b)) return {};
    if (const std::size_t total = b.device().total_memory().bytes(); bytes > total) {
      return make_python_error(errc::out_of_memory, op, "the request exceeds the device's memory",
                               bytes, total, error_unit::bytes);
    }
    if (exports_.load(std::memory_order_acquire) != 0) {
      return make_python_error(
          errc::busy, op,
          "growing past the reservation changes the address, and views of the memory "
          "are exported: delete them first, then pass relocate=True",
          bytes, limit, error_unit::bytes);
    }
    if (relocate) return {};
    return make_python_error(errc::invalid_argument, op,
                             b.in_place()
                                 ? "growing past the reservation changes the address: make the "
                                   "object with a larger `reserve`, or pass relocate=True"
                                 : "the device cannot map pages, so growing past the capacity "
                                   "changes the address, which is in use: call reserve() before "
                                   "the address is read, or pass relocate=True",
                             bytes, limit, error_unit::bytes);
  }
  // For `act`: fails where giving memory back would unmap what a view shows, or change the address.
  template <class Buffer>
  status refuse_shrink(const char *op, const Buffer &b, bool relocate) const {
    if (status s = refuse_exported(); !s) return s;
    if (b.in_place() || relocate || unseen(b)) return {};
    return make_python_error(
        errc::invalid_argument, op,
        "the device cannot map pages, so giving memory back changes the address, which "
        "is in use: pass relocate=True",
        b.size(), b.capacity(), error_unit::bytes);
  }
  // For `act`: the address is given out, so from now on it changes only where that is asked for.
  void show_address() const { address_seen_.store(true, std::memory_order_relaxed); }
  // For `act`, so that no other thread closes or moves the memory before it is counted.
  void count_export() { exports_.fetch_add(1, std::memory_order_relaxed); }
  std::atomic<int> &exports() { return exports_; }

  // Waits for the device and releases the memory. Raises BusyError while a view is exported.
  void close() {
    if (forked_after_use()) return forget();
    check(without_gil([&]() -> status {
      const std::lock_guard lock(mutex_);
      if (!owner_) return {};
      if (status s = refuse_exported(); !s) return s;
      owner_.reset();
      return {};
    }));
  }

 private:
  // Without mapped pages growth copies: harmless while nothing outside has the address.
  template <class Buffer>
  bool unseen(const Buffer &b) const {
    return !b.in_place() && !address_seen_.load(std::memory_order_relaxed);
  }

  // In a forked child: the memory is the parent's, and is not released.
  void forget() {
    if (owner_) (void)new Owner(std::move(*owner_));
    owner_.reset();
  }

  const char *const class_name_;
  mutable std::mutex mutex_;
  mutable std::optional<Owner> owner_;  // reading a vector sends its staged elements
  std::atomic<int> exports_{0};
  mutable std::atomic<bool> address_seen_{false};
};

}  // namespace stillmap::python
