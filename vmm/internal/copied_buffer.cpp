#include "stillmap/vmm/internal/copied_buffer.h"

#include <algorithm>

#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

class copied_buffer final : public buffer_impl {
 public:
  using buffer_impl::buffer_impl;
  ~copied_buffer() override = default;

  device_address address() const override {
    const lock_guard lock(mutex_);
    return at_;
  }
  std::size_t reserved() const override { return capacity(); }
  std::size_t page_bytes() const override { return device_.capabilities().page_bytes; }
  std::size_t mapped_bytes() const override { return capacity(); }
  bool in_place() const override { return false; }
  std::uint64_t generation() const override {
    const lock_guard lock(mutex_);
    return generation_;
  }
  bool committed(std::size_t offset, std::size_t bytes) const override {
    return offset <= capacity() && bytes <= capacity() - offset;
  }

  status check_access(std::size_t, std::size_t, access_mode) const override { return {}; }

  status reserve(std::size_t bytes, consumer_stream) override {
    const lock_guard lock(mutex_);
    if (bytes <= capacity()) return {};
    const std::size_t total = device_.total_memory().bytes();
    if (bytes > total) {
      return make_error(errc::out_of_memory, "the request exceeds the device's memory", bytes,
                        total, error_unit::bytes);
    }
    // Doubles the capacity, so that the cost of appending is linear. If that fails, grows to the
    // requested size.
    const std::size_t page = page_bytes();
    if (bytes < capacity() * 2) {
      if (move_to(round_up(capacity() * 2, page))) return {};
    }
    // The old allocation stays until the copy is done: the new one has what is free beside it.
    const status moved = move_to(round_up(bytes, page));
    if (!moved) return tl::unexpected(of_request(moved.error(), bytes, 0));
    return {};
  }

  status shrink_to(std::size_t bytes, release_fence idle) override {
    const lock_guard lock(mutex_);
    const std::size_t wanted = round_up(bytes, page_bytes());
    if (wanted >= capacity()) return {};
    STILLMAP_RETURN_IF_ERROR(wait(idle));
    return wanted == 0 ? drop() : move_to(wanted);
  }

  status commit(std::size_t offset, std::size_t bytes, consumer_stream consumer) override {
    const std::size_t page = page_bytes();
    if (offset % page != 0 || bytes % page != 0) {
      return make_error(errc::invalid_argument, "the range is not a multiple of the page size",
                        offset % page != 0 ? offset : bytes, page, error_unit::bytes);
    }
    if (offset > SIZE_MAX - bytes) {
      return make_error(errc::invalid_argument, "the range exceeds any address space", offset,
                        SIZE_MAX, error_unit::bytes);
    }
    return reserve(offset + bytes, consumer);
  }

  status decommit(std::size_t, std::size_t, release_fence) override { return no(); }

  status close(release_fence idle) override {
    const lock_guard lock(mutex_);
    if (!at_) return {};
    STILLMAP_RETURN_IF_ERROR(wait(idle));
    return drop();
  }

  result<std::unique_ptr<buffer_impl>> alias(std::size_t, std::size_t, std::size_t) override {
    return no();
  }

  // Pages cannot be shared, so the copy is made at once and make_writable has nothing to do.
  result<std::unique_ptr<buffer_impl>> fork() override {
    const lock_guard lock(mutex_);
    auto child = std::make_unique<copied_buffer>(device_, options_);
    const lock_guard child_lock(child->mutex_);  // nobody else's yet
    const context_guard guard(device_.driver(), device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    if (capacity() != 0) {
      STILLMAP_RETURN_IF_ERROR(child->move_to(capacity()));
      if (size() != 0) {
        // Waits before and after: the copy is not ordered with the work of other streams.
        const driver &drv = device_.driver();
        status s = drv.synchronize_context();
        if (s) s = drv.copy_on_device(child->at_, at_, size());
        if (s) s = drv.synchronize_context();
        if (!s) {
          report_if_failed(child->drop());
          return tl::unexpected(s.error());
        }
      }
      child->stats_ = {};
      child->stats_.bytes_copied = size();
      child->size_.store(size());
    }
    return child;
  }

  status make_writable(std::size_t offset, std::size_t bytes, stream_ref) override {
    if (committed(offset, bytes)) return {};
    return make_error(errc::invalid_argument, "the range is outside the allocation", offset,
                      capacity(), error_unit::bytes);
  }

  status splice(std::size_t, std::size_t, buffer_impl &, std::size_t, release_fence) override {
    return no();
  }

 private:
  using record = address_space::fallback_record;

  static tl::unexpected<error> no() {
    return make_error(errc::not_supported, "this buffer is not made of pages");
  }

  status wait(release_fence idle) {
    if (idle == nullptr) return wait_for_device();
    return fence(*idle).wait();
  }

  // Allocates `bytes`, copies the bytes in use, and frees the old memory. All or nothing.
  status move_to(std::size_t bytes) STILLMAP_REQUIRES(mutex_) {
    const driver &drv = device_.driver();
    const context_guard guard(drv, device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    STILLMAP_ASSIGN_OR_RETURN(record prepared, address_space::prepare_fallback());
    STILLMAP_ASSIGN_OR_RETURN(const auto fresh, drv.allocate(bytes));
    const std::size_t used = std::min(size(), bytes);
    status s;
    // The copy runs on the default stream, which is not ordered behind non-blocking streams.
    if (at_) s = drv.synchronize_context();
    if (s && at_ && used != 0) s = drv.copy_on_device(fresh, at_, used);
    if (s && at_ && used != 0) s = drv.synchronize_context();
    // Added before the old memory is removed: the peak counts both.
    if (s) device_.space().add_fallback({fresh, bytes}, std::move(prepared));
    if (s && at_) {
      s = free_entered();
      if (!s) device_.space().remove_fallback({fresh, bytes});
    }
    if (!s) {
      report_if_failed(drv.free(fresh));
      return s;
    }
    if (at_) {
      stats_.bytes_copied += used;
      ++stats_.relocations;
    }
    ++stats_.growths;
    ++generation_;
    at_ = fresh;
    capacity_ = bytes;
    return {};
  }

  // Removed from the ledger first: once it is freed, another thread may get the same address.
  status free_entered() STILLMAP_REQUIRES(mutex_) {
    record removed = device_.space().remove_fallback({at_, capacity()});
    const status s = device_.driver().free(at_);
    if (!s) device_.space().add_fallback({at_, capacity()}, std::move(removed));
    return s;
  }

  status drop() STILLMAP_REQUIRES(mutex_) {
    if (!at_) return {};
    const context_guard guard(device_.driver(), device_.context());
    STILLMAP_RETURN_IF_ERROR(guard.entered());
    STILLMAP_RETURN_IF_ERROR(free_entered());
    at_ = device_address();
    capacity_ = 0;
    ++generation_;
    return {};
  }

  device_address at_ STILLMAP_GUARDED_BY(mutex_);
  std::uint64_t generation_ STILLMAP_GUARDED_BY(mutex_) = 0;
};

}  // namespace

result<std::unique_ptr<buffer_impl>> make_copied_buffer(const device &d, buffer_options options) {
  return std::make_unique<copied_buffer>(d, std::move(options));
}

}  // namespace stillmap
