// The implementation of a growable_buffer: pages (mapped_buffer) or, without VMM, one allocation
// (copied_buffer).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/buffer_options.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap {

// When memory is given back: after `idle`, or (none given) once the device has been waited for.
using release_fence = const fence *;
using consumer_stream = std::optional<stream_ref>;

class buffer_impl {
 public:
  buffer_impl(stillmap::device d, buffer_options options)
      : device_(std::move(d)), options_(std::move(options)) {}
  virtual ~buffer_impl() = default;
  buffer_impl(const buffer_impl &) = delete;
  buffer_impl &operator=(const buffer_impl &) = delete;

  virtual device_address address() const = 0;
  virtual std::size_t reserved() const = 0;
  virtual std::size_t page_bytes() const = 0;
  virtual std::size_t mapped_bytes() const = 0;
  virtual bool in_place() const = 0;
  virtual std::uint64_t generation() const = 0;
  virtual bool committed(std::size_t offset, std::size_t bytes) const = 0;
  // Checks that a copy may read, or write, committed memory.
  virtual status check_access(std::size_t offset, std::size_t bytes, access_mode wanted) const = 0;

  virtual status reserve(std::size_t bytes, consumer_stream consumer) = 0;
  virtual status shrink_to(std::size_t bytes, release_fence idle) = 0;
  virtual status commit(std::size_t offset, std::size_t bytes, consumer_stream consumer) = 0;
  virtual status decommit(std::size_t offset, std::size_t bytes, release_fence idle) = 0;
  virtual status close(release_fence idle) = 0;
  virtual result<std::unique_ptr<buffer_impl>> alias(std::size_t offset, std::size_t bytes,
                                                     std::size_t times) = 0;
  virtual result<std::unique_ptr<buffer_impl>> fork() = 0;
  virtual status make_writable(std::size_t offset, std::size_t bytes, stream_ref stream) = 0;
  virtual status splice(std::size_t offset, std::size_t bytes, buffer_impl &to,
                        std::size_t to_offset, release_fence idle) = 0;
  virtual void size_changed() {}  // may start mapping ahead

  status resize(std::size_t bytes, consumer_stream consumer) {
    if (bytes > capacity_.load(std::memory_order_acquire)) {
      STILLMAP_RETURN_IF_ERROR(reserve(bytes, consumer));
    }
    size_.store(bytes, std::memory_order_release);
    size_changed();
    return {};
  }

  const stillmap::device &device() const { return device_; }
  const buffer_options &options() const { return options_; }
  std::size_t size() const { return size_.load(std::memory_order_acquire); }
  std::size_t capacity() const { return capacity_.load(std::memory_order_acquire); }
  buffer_stats stats() const {
    const lock_guard lock(mutex_);
    return stats_;
  }

 protected:
  // An error of growing in the terms of the operation: what it was asked for, and how much there was for
  // it, `held` bytes that were mapped before included.
  error of_request(error e, std::size_t bytes, std::size_t held) const {
    if (!e.is(errc::out_of_memory) || e.code == std::errc::not_enough_memory) return e;
    e.operation = operation_scope::current();
    e.value = bytes;
    // A limit that is all memory of the device contains what is held.
    const std::uint64_t most = std::max(e.limit, device_.total_memory().bytes());
    if (e.limit != 0) e.limit = std::min(e.limit + held, most);
    return e;
  }

  // Waits for everything queued on the device: what cuMemFree does by itself, unmap does not.
  status wait_for_device() const {
    const context_guard guard(device_.driver(), device_.context());
    return guard.entered() ? device_.driver().synchronize_context() : guard.entered();
  }

  const stillmap::device device_;
  const buffer_options options_;
  // Guards the state, the subclass's too, against the background thread. Lock order: before all others of
  // the device; a new buffer's after that of the buffer that it is made from.
  mutable mutex mutex_;
  buffer_stats stats_ STILLMAP_GUARDED_BY(mutex_);
  std::atomic<std::size_t> size_{0};
  std::atomic<std::size_t> capacity_{0};
};

}  // namespace stillmap
