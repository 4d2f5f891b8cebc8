// A vector of elements in device memory. data() does not move, and growing copies nothing.
// docs/buffers.md#device-vector
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/byte_vector.h"
#include "stillmap/vmm/device_span.h"

namespace stillmap {

struct vector_options {
  buffer_options buffer{};                           // reserve is in bytes
  std::size_t staging_bytes = std::size_t{1} << 18;  // pinned host memory behind push_back
};

// Elements are trivially copyable and live in device memory: the host never dereferences data().
// Ordering: everything that touches elements is queued on the vector's stream; use them on that
//   stream, or after synchronize() or an event recorded there.
// push_back gathers elements in pinned host memory; they count in size() at once, and are sent when
//   a batch is full and by flush(), data(), begin(), end() and span(). Work that uses a pointer got
//   earlier needs a flush() first.
// Threads: externally synchronised, const members included: they may send staged elements.
// Failure: every operation leaves the elements as they were, and capacity() too where the buffer
//   grows in place.
// Errors: those of growable_buffer::resize where it grows; invalid_argument for positions past the
//   end (value, limit = size); busy (suspended memory: resume it); the driver's.
template <class T>
class device_vector {
  static_assert(std::is_trivially_copyable_v<T>, "elements are copied as bytes");
  static_assert(!std::is_const_v<T>, "a vector of constants cannot grow");

 public:
  using value_type = T;
  using size_type = std::size_t;
  using pointer = T *;
  using const_pointer = const T *;
  using iterator = T *;
  using const_iterator = const T *;

  // Stream: all work of the vector is queued on `stream`; the default is the legacy default stream.
  // Cost:   one reserve; no memory until the first element.
  static result<device_vector> create(const device &d, vector_options options = {},
                                      stream_ref stream = stream_ref::legacy()) {
    auto bytes =
        detail::byte_vector::create(d, std::move(options.buffer), stream, options.staging_bytes);
    if (!bytes) return tl::unexpected(bytes.error());
    return device_vector(std::move(*bytes));
  }

  size_type size() const { return bytes_.size() / sizeof(T); }
  bool empty() const { return size() == 0; }
  size_type capacity() const { return bytes_.buffer().capacity() / sizeof(T); }
  size_type max_size() const { return bytes_.buffer().reserved() / sizeof(T); }
  const growable_buffer &buffer() const { return bytes_.buffer(); }
  stream_ref stream() const { return bytes_.stream(); }
  // Work queued from now on goes to `s`, which waits for what is queued on the old stream.
  status set_stream(stream_ref s) { return bytes_.set_stream(s); }

  // The address of the first element; the same for life unless buffer().stats().relocations says
  // otherwise. A flush that fails is reported to the error sink and again by the next flush().
  T *data() { return flushed_data(); }
  const T *data() const { return flushed_data(); }
  device_address address() const { return bytes_.buffer().address(); }
  iterator begin() { return data(); }
  iterator end() { return data() + size(); }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size(); }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }
  device_span<T> span() { return {data(), size()}; }
  device_span<const T> span() const { return {data(), size()}; }

  // Cost: a copy to pinned memory; one asynchronous copy per batch; growth when capacity is full.
  status push_back(const T &value) { return bytes_.push(&value, sizeof(T)); }
  // Copies from the host; `values` may be reused on return (append_async: once the stream is
  // there).
  status append(std::span<const T> values) {
    return bytes_.append(values.data(), values.size_bytes(), true);
  }
  status append_async(std::span<const T> values) {
    const operation_scope scope("device_vector::append_async");
    return bytes_.append(values.data(), values.size_bytes(), false);
  }
  // `values` may be this vector's own elements.
  status append_from_device(const T *values, size_type n) {
    return bytes_.append_from_device(address_of(values), bytes(n), false);
  }
  // Replaces all elements. Copies from the host, as append. After device_lost the elements are
  // unspecified, old or new; after any other error they are as they were.
  status assign(std::span<const T> values) {
    return bytes_.assign(values.data(), values.size_bytes());
  }

  // Elements from `position` on move up: twice across device memory, through a scratch page.
  status insert(size_type position, std::span<const T> values) {
    return bytes_.insert(bytes(position), values.size_bytes(), values.data(), {});
  }
  // `values` must not be in this vector.
  status insert_from_device(size_type position, const T *values, size_type n) {
    const operation_scope scope("device_vector::insert_from_device");
    return bytes_.insert(bytes(position), n * sizeof(T), nullptr, address_of(values));
  }
  status erase(size_type position, size_type n) { return bytes_.erase(bytes(position), bytes(n)); }
  status pop_back() {
    const operation_scope scope("device_vector::pop_back");
    if (empty()) return make_error(errc::invalid_argument, "empty");
    return bytes_.resize(bytes_.size() - sizeof(T), false);
  }
  status clear() {
    const operation_scope scope("device_vector::clear");
    return bytes_.resize(0, false);
  }

  // New elements are zero bytes (resize) or unspecified (resize_uninitialized).
  status resize(size_type n) { return bytes_.resize(bytes(n), true); }
  status resize_uninitialized(size_type n) {
    const operation_scope scope("device_vector::resize_uninitialized");
    return bytes_.resize(bytes(n), false);
  }
  status reserve(size_type n) { return bytes_.reserve(bytes(n)); }
  // Gives back whole pages past the end; what is queued on the vector's stream is waited for by the
  // pages, not by the host. Other streams' work on those elements must be ordered before it.
  status shrink_to_fit() { return bytes_.shrink_to_fit(); }

  // Host-synchronous, after what is queued on the stream. After device_lost the element may be the
  // old or the new one.
  status set(size_type position, const T &value) {
    const operation_scope scope("device_vector::set");
    return bytes_.write(bytes(position), &value, sizeof(T));
  }
  result<T> get(size_type position) const {
    const operation_scope scope("device_vector::get");
    T value;
    if (status s = bytes_.read(bytes(position), &value, sizeof(T)); !s) {
      return tl::unexpected(s.error());
    }
    return value;
  }
  // Elements from `position` on, to and from the host. Host-synchronous, on the vector's stream.
  status copy_to_host(std::span<T> out, size_type position = 0) const {
    const operation_scope scope("device_vector::copy_to_host");
    return bytes_.read(bytes(position), out.data(), out.size_bytes());
  }
  status copy_from_host(std::span<const T> values, size_type position = 0) {
    const operation_scope scope("device_vector::copy_from_host");
    return bytes_.write(bytes(position), values.data(), values.size_bytes());
  }
  result<std::vector<T>> to_host() const {
    const operation_scope scope("device_vector::to_host");
    std::vector<T> out;
    try {
      out.resize(size());
    } catch (const std::bad_alloc &) {
      return detail::byte_vector::no_host_memory();
    }
    if (status s = copy_to_host(out); !s) return tl::unexpected(s.error());
    return out;
  }

  status flush() { return bytes_.flush(); }
  status synchronize() { return bytes_.synchronize(); }  // flush, and wait for the stream

 private:
  explicit device_vector(detail::byte_vector bytes) : bytes_(std::move(bytes)) {}
  // Saturating, so that an absurd count is refused as too large instead of wrapping to a small one.
  static std::size_t bytes(size_type n) {
    return n > SIZE_MAX / sizeof(T) ? SIZE_MAX : n * sizeof(T);
  }
  static device_address address_of(const T *p) {
    return device_address(reinterpret_cast<std::uintptr_t>(p));
  }

  T *flushed_data() const {
    if (const status s = bytes_.flush(); !s) report_background_error(s.error());
    return static_cast<T *>(bytes_.buffer().data());
  }

  mutable detail::byte_vector bytes_;  // const members send staged elements, too
};

}  // namespace stillmap
