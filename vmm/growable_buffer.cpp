#include "stillmap/vmm/growable_buffer.h"

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/internal/copied_buffer.h"
#include "stillmap/vmm/internal/mapped_buffer.h"
#include "stillmap/vmm/internal/wait_for_copies.h"

namespace stillmap {
namespace {

// The error of every operation on a buffer that was moved from or closed.
tl::unexpected<error> gone() {
  return make_error(errc::invalid_argument, "the buffer was closed or moved from");
}

// The result of act(*buffer), or why there is none.
template <class Act>
auto enter(buffer_impl *buffer, const char *operation, const Act &act) -> decltype(act(*buffer)) {
  const operation_scope scope(operation);
  if (buffer == nullptr) return gone();
  return with_host_memory([&] { return act(*buffer); });
}

}  // namespace

result<growable_buffer> growable_buffer::create(const stillmap::device &d, buffer_options options) {
  const operation_scope scope("growable_buffer::create");
  for (const int peer : options.peer_devices) {
    bool known = peer == d.ordinal();
    for (const int p : d.capabilities().peers) known = known || p == peer;
    if (!known) {
      return make_error(errc::invalid_argument, "the device cannot reach this one's memory",
                        static_cast<std::uint64_t>(peer));
    }
  }
  return with_host_memory([&]() -> result<growable_buffer> {
    const bool mapped = d.capabilities().vmm && !options.force_copying;
    STILLMAP_ASSIGN_OR_RETURN(auto made, mapped ? make_mapped_buffer(d, std::move(options))
                                                : make_copied_buffer(d, std::move(options)));
    return growable_buffer(std::move(made));
  });
}

growable_buffer::growable_buffer(std::unique_ptr<buffer_impl> i)
    : device_(i->device()), impl_(std::move(i)) {}

growable_buffer::growable_buffer(growable_buffer &&other) noexcept = default;

growable_buffer &growable_buffer::operator=(growable_buffer &&other) noexcept {
  if (this != &other) {
    growable_buffer old(std::move(*this));
    device_ = other.device_;
    impl_ = std::move(other.impl_);
  }
  return *this;
}

growable_buffer::~growable_buffer() {
  if (!impl_) return;
  const operation_scope scope("growable_buffer::~growable_buffer");
  report_if_failed(impl_->close(nullptr));
}

status growable_buffer::close(const fence &idle) {
  const operation_scope scope("growable_buffer::close");
  if (!impl_) return gone();
  STILLMAP_RETURN_IF_ERROR(impl_->close(&idle));
  impl_.reset();
  return {};
}

device_address growable_buffer::address() const {
  return impl_ ? impl_->address() : device_address();
}
std::size_t growable_buffer::size() const {
  return impl_ ? impl_->size() : 0;
}
std::size_t growable_buffer::capacity() const {
  return impl_ ? impl_->capacity() : 0;
}
std::size_t growable_buffer::reserved() const {
  return impl_ ? impl_->reserved() : 0;
}
std::size_t growable_buffer::page_bytes() const {
  return impl_ ? impl_->page_bytes() : 0;
}
std::size_t growable_buffer::mapped_bytes() const {
  return impl_ ? impl_->mapped_bytes() : 0;
}
bool growable_buffer::in_place() const {
  return impl_ && impl_->in_place();
}
std::uint64_t growable_buffer::generation() const {
  return impl_ ? impl_->generation() : 0;
}
const std::string &growable_buffer::tag() const {
  static const std::string none;
  return impl_ ? impl_->options().tag : none;
}
buffer_stats growable_buffer::stats() const {
  return impl_ ? impl_->stats() : buffer_stats{};
}

status growable_buffer::resize(std::size_t bytes) {
  return enter(impl_.get(), "growable_buffer::resize",
               [&](auto &b) { return b.resize(bytes, std::nullopt); });
}
status growable_buffer::resize(std::size_t bytes, stream_ref stream) {
  return enter(impl_.get(), "growable_buffer::resize",
               [&](auto &b) { return b.resize(bytes, stream); });
}
status growable_buffer::reserve(std::size_t bytes) {
  return enter(impl_.get(), "growable_buffer::reserve",
               [&](auto &b) { return b.reserve(bytes, std::nullopt); });
}
status growable_buffer::reserve(std::size_t bytes, stream_ref stream) {
  return enter(impl_.get(), "growable_buffer::reserve",
               [&](auto &b) { return b.reserve(bytes, stream); });
}
status growable_buffer::shrink_to_fit() {
  return enter(impl_.get(), "growable_buffer::shrink_to_fit",
               [&](auto &b) { return b.shrink_to(b.size(), nullptr); });
}
status growable_buffer::shrink_to_fit(const fence &idle) {
  return enter(impl_.get(), "growable_buffer::shrink_to_fit",
               [&](auto &b) { return b.shrink_to(b.size(), &idle); });
}
status growable_buffer::commit(std::size_t offset, std::size_t bytes) {
  return enter(impl_.get(), "growable_buffer::commit",
               [&](auto &b) { return b.commit(offset, bytes, std::nullopt); });
}
status growable_buffer::commit(std::size_t offset, std::size_t bytes, stream_ref stream) {
  return enter(impl_.get(), "growable_buffer::commit",
               [&](auto &b) { return b.commit(offset, bytes, stream); });
}
status growable_buffer::decommit(std::size_t offset, std::size_t bytes) {
  return enter(impl_.get(), "growable_buffer::decommit",
               [&](auto &b) { return b.decommit(offset, bytes, nullptr); });
}
status growable_buffer::decommit(std::size_t offset, std::size_t bytes, const fence &idle) {
  return enter(impl_.get(), "growable_buffer::decommit",
               [&](auto &b) { return b.decommit(offset, bytes, &idle); });
}
bool growable_buffer::committed(std::size_t offset, std::size_t bytes) const {
  return impl_ && impl_->committed(offset, bytes);
}

status growable_buffer::check_access(access_mode wanted, std::size_t offset,
                                     std::size_t bytes) const {
  const operation_scope scope("growable_buffer::check_access");
  if (!impl_) return gone();
  if (!impl_->committed(offset, bytes)) {
    return make_error(errc::invalid_argument, "part of the range is not committed",
                      bytes > SIZE_MAX - offset ? SIZE_MAX : offset + bytes, capacity(),
                      error_unit::bytes);
  }
  if (bytes == 0) return {};
  return with_host_memory([&] { return impl_->check_access(offset, bytes, wanted); });
}

// Checks a host copy's range, queues the copy by `copy`, and waits for it.
template <class Copy>
status growable_buffer::copy(access_mode wanted, std::size_t offset, std::size_t bytes,
                             stream_ref stream, const Copy &copy) const {
  STILLMAP_RETURN_IF_ERROR(check_access(wanted, offset, bytes));
  if (bytes == 0) return {};
  const stillmap::driver &drv = device_.driver();
  const context_guard guard(drv, device_.context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  STILLMAP_RETURN_IF_ERROR(copy(drv, address() + offset));
  return wait_for_copies(drv, stream);
}

status growable_buffer::copy_from_host(std::size_t offset, const void *from, std::size_t bytes,
                                       stream_ref stream) {
  const operation_scope scope("growable_buffer::copy_from_host");
  return copy(access_mode::read_write, offset, bytes, stream,
              [&](const stillmap::driver &drv, device_address at) {
                return drv.copy_to_device_async(at, from, bytes, stream.get());
              });
}

status growable_buffer::copy_to_host(void *to, std::size_t offset, std::size_t bytes,
                                     stream_ref stream) const {
  const operation_scope scope("growable_buffer::copy_to_host");
  return copy(access_mode::read, offset, bytes, stream,
              [&](const stillmap::driver &drv, device_address at) {
                return drv.copy_to_host_async(to, at, bytes, stream.get());
              });
}

result<growable_buffer> growable_buffer::alias(std::size_t offset, std::size_t bytes,
                                               std::size_t times) const {
  STILLMAP_ASSIGN_OR_RETURN(auto made, enter(impl_.get(), "growable_buffer::alias", [&](auto &b) {
                              return b.alias(offset, bytes, times);
                            }));
  return growable_buffer(std::move(made));
}

result<growable_buffer> growable_buffer::fork() {
  STILLMAP_ASSIGN_OR_RETURN(
      auto made, enter(impl_.get(), "growable_buffer::fork", [&](auto &b) { return b.fork(); }));
  return growable_buffer(std::move(made));
}

status growable_buffer::make_writable(std::size_t offset, std::size_t bytes, stream_ref stream) {
  return enter(impl_.get(), "growable_buffer::make_writable",
               [&](auto &b) { return b.make_writable(offset, bytes, stream); });
}

status growable_buffer::splice(std::size_t offset, std::size_t bytes, growable_buffer &to,
                               std::size_t to_offset) {
  const operation_scope scope("growable_buffer::splice");
  if (!to.impl_) return gone();
  return enter(impl_.get(), "growable_buffer::splice",
               [&](auto &b) { return b.splice(offset, bytes, *to.impl_, to_offset, nullptr); });
}
status growable_buffer::splice(std::size_t offset, std::size_t bytes, growable_buffer &to,
                               std::size_t to_offset, const fence &idle) {
  const operation_scope scope("growable_buffer::splice");
  if (!to.impl_) return gone();
  return enter(impl_.get(), "growable_buffer::splice",
               [&](auto &b) { return b.splice(offset, bytes, *to.impl_, to_offset, &idle); });
}

}  // namespace stillmap
