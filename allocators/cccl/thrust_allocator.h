// A caching_allocator as a memory resource and as an allocator of Thrust, for thrust::device_vector and
// for the temporary memory of Thrust's algorithms. docs/cccl.md#thrust
#pragma once

#if !__has_include(<thrust/mr/memory_resource.h>)
#error \
    "stillmap/allocators/cccl/thrust_allocator.h needs the headers of Thrust: <CUDA Toolkit>/include/cccl"
#endif

#include <thrust/device_ptr.h>
#include <thrust/mr/allocator.h>
#include <thrust/mr/memory_resource.h>

#include <cstddef>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/cccl/versioned_namespace.h"

namespace stillmap::cccl {
inline namespace STILLMAP_CCCL_NAMESPACE {

// A failed allocation, with its message. Thrust's own resources throw a std::bad_alloc for every
// failure, too (<thrust/system/cuda/memory_resource.h>).
class thrust_bad_alloc : public std::bad_alloc {
 public:
  explicit thrust_bad_alloc(const std::string &text) : text_(text) {}
  const char *what() const noexcept override { return text_.what(); }

 private:
  std::runtime_error text_;  // whose copies cannot throw
};

// Thrust's interface has no stream, so a resource is for one: its blocks are for work queued on
// `stream`, and the work that uses a block must be ordered before what is queued there when the block
// is freed. With the legacy default stream, which is the default, that holds by itself for Thrust's
// algorithms without a stream and on streams that are not cudaStreamNonBlocking. cudaFree, which
// waits for the whole device, asks less of the caller.
//
// Lifetime: shares the allocator. thrust::mr::allocator holds a bare pointer to the resource, which must
//           outlive its containers; thrust_allocator below owns it.
// Threads:  safe.
// Errors:   do_allocate throws a std::bad_alloc; do_deallocate throws nothing and reports to
//           report_background_error.
class thrust_resource final : public thrust::mr::memory_resource<thrust::device_ptr<void>> {
 public:
  // Throws std::invalid_argument for nullptr.
  explicit thrust_resource(std::shared_ptr<caching_allocator> allocator, stream_ref stream = {})
      : allocator_(std::move(allocator)), stream_(stream) {
    if (!allocator_) throw std::invalid_argument("cccl::thrust_resource: the allocator is null");
  }
  thrust_resource(const thrust_resource &) = delete;
  thrust_resource &operator=(const thrust_resource &) = delete;

  const std::shared_ptr<caching_allocator> &allocator() const noexcept { return allocator_; }
  stream_ref stream() const noexcept { return stream_; }

  pointer do_allocate(std::size_t bytes, std::size_t alignment) override {
    const auto block = allocator_->allocate(bytes, stream_, {.alignment = alignment});
    if (!block) throw thrust_bad_alloc(block.error().message());
    return pointer(*block);
  }
  void do_deallocate(pointer block, std::size_t /*bytes*/,
                     std::size_t /*alignment*/) noexcept override {
    if (const status freed = allocator_->free(block.get(), stream_); !freed) {
      report_background_error(freed.error());
    }
  }

  // thrust::mr's operator== compares its second argument with itself up to CCCL 3.5, and so finds any
  // two resources equal (<thrust/mr/memory_resource.h>).
  friend bool operator==(const thrust_resource &a, const thrust_resource &b) noexcept {
    return a.allocator_ == b.allocator_ && a.stream_ == b.stream_;
  }

 private:
  const std::shared_ptr<caching_allocator> allocator_;
  const stream_ref stream_;
};

// For thrust::device_vector<T, thrust_allocator<T>>, and as the argument of thrust::cuda::par(...).
// Copies share one thrust_resource, which lives as long as any of them: a vector may outlive the
// variable that its allocator was copied from.
template <class T>
class thrust_allocator : public thrust::mr::allocator<T, thrust_resource> {
  using base = thrust::mr::allocator<T, thrust_resource>;

 public:
  template <class U>
  struct rebind {
    using other = thrust_allocator<U>;
  };

  // Throws std::invalid_argument for nullptr, and std::bad_alloc.
  explicit thrust_allocator(std::shared_ptr<caching_allocator> heap, stream_ref stream = {})
      : thrust_allocator(owned(), std::make_shared<thrust_resource>(std::move(heap), stream)) {}
  template <class U>
  thrust_allocator(const thrust_allocator<U> &other)  // NOLINT: allocators convert
      : thrust_allocator(owned(), other.owner()) {}
  // Copies only: an allocator that was moved from stays usable.
  thrust_allocator(const thrust_allocator &) = default;
  thrust_allocator &operator=(const thrust_allocator &) = default;

  // The resource, for a copy of the allocator for another type.
  const std::shared_ptr<thrust_resource> &owner() const noexcept { return owner_; }

 private:
  struct owned {};
  thrust_allocator(owned, std::shared_ptr<thrust_resource> owner)
      : base(owner.get()), owner_(std::move(owner)) {}

  std::shared_ptr<thrust_resource> owner_;
};

}  // namespace STILLMAP_CCCL_NAMESPACE
}  // namespace stillmap::cccl
