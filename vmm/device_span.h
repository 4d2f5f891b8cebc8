// A view of elements in device memory: pointer and count. A kernel can take it by value; the header
// includes nothing else of Stillmap. docs/buffers.md#device-vector
#pragma once

#include <cstddef>
#include <type_traits>

// The members are host and device functions where the compiler knows both, without any flag.
#if defined(__CUDACC__) || defined(__HIPCC__)
#define STILLMAP_HOST_DEVICE __host__ __device__
#else
#define STILLMAP_HOST_DEVICE
#endif

namespace stillmap {

// Converts to any span-like type that is constructed from (pointer, size), cuda::std::span among
// them, and from device_span<T> to device_span<const T>. Never owns the elements.
template <class T>
class device_span {
 public:
  constexpr device_span() = default;
  STILLMAP_HOST_DEVICE constexpr device_span(T *data, std::size_t size)
      : data_(data), size_(size) {}
  template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
  STILLMAP_HOST_DEVICE constexpr device_span(
      const device_span<U> &other)  // NOLINT: a view converts
      : data_(other.data()), size_(other.size()) {}

  STILLMAP_HOST_DEVICE constexpr T *data() const { return data_; }
  STILLMAP_HOST_DEVICE constexpr std::size_t size() const { return size_; }
  STILLMAP_HOST_DEVICE constexpr std::size_t size_bytes() const { return size_ * sizeof(T); }
  STILLMAP_HOST_DEVICE constexpr bool empty() const { return size_ == 0; }
  STILLMAP_HOST_DEVICE constexpr T *begin() const { return data_; }
  STILLMAP_HOST_DEVICE constexpr T *end() const { return data_ + size_; }
  // In device code only. Requires: i < size().
  STILLMAP_HOST_DEVICE constexpr T &operator[](std::size_t i) const { return data_[i]; }
  template <class Span, class = std::enable_if_t<std::is_constructible_v<Span, T *, std::size_t>>>
  STILLMAP_HOST_DEVICE constexpr explicit operator Span() const {
    return Span(data_, size_);
  }

 private:
  T *data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace stillmap
