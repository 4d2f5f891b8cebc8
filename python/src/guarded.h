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
      if (!owner_) return make_error(errc::invalid_argument, class_name_, "the object is closed");
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
    return make_error(errc::busy, class_name_,
                      "views of the memory are exported, which this call would invalidate: delete "
                      "them first",
                      static_cast<std::uint64_t>(views), 0, error_unit::items);
  }
  // The same where a buffer would have to move to hold `bytes`.
  template <class Buffer>
  status refuse_move(const Buffer &b, std::size_t bytes) const {
    const bool stays = bytes <= b.capacity() || (b.in_place() && bytes <= b.reserved());
    return stays ? status() : refuse_exported();
  }
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
  // In a forked child: the memory is the parent's, and is not released.
  void forget() {
    if (owner_) (void)new Owner(std::move(*owner_));
    owner_.reset();
  }

  const char *const class_name_;
  mutable std::mutex mutex_;
  mutable std::optional<Owner> owner_;  // reading a vector sends its staged elements
  std::atomic<int> exports_{0};
};

}  // namespace stillmap::python
