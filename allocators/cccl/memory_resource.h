// A caching_allocator as a memory resource of CCCL (cuda::mr), for its containers and for RMM 26 and later.
// docs/cccl.md
//
// Header only: the CCCL of the including program decides which of its three interfaces the class has.
//
//   CCCL            concepts                        members
//   3.0 and before  resource, async_resource        allocate(bytes, alignment), allocate_async(..., stream)
//   3.1             synchronous_resource, resource  allocate_sync(bytes, alignment), allocate(stream, ...)
//   3.2 and later   the same, without the macro     the same
//
// Source: <cuda/__memory_resource/resource.h> of CCCL 2.8, 3.0.1, 3.1.4, 3.2.0 and 3.5.0.
#pragma once

#if !__has_include(<cuda/memory_resource>)
#error \
    "stillmap/allocators/cccl/memory_resource.h needs the headers of CCCL: <CUDA Toolkit>/include/cccl"
#endif

#include <cuda/memory_resource>
#include <cuda/stream_ref>

#if CCCL_VERSION < 3002000 && !defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#error \
    "before CCCL 3.2, cuda::mr exists only where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"
#endif

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/cccl/versioned_namespace.h"
#include "stillmap/vmm/base/mutex.h"

namespace stillmap::cccl {
inline namespace STILLMAP_CCCL_NAMESPACE {

// Throws `e` as the resources of CCCL do: std::invalid_argument for an argument that can never work,
// cuda::cuda_error for all else of the device, whose number is out of memory's (2) where errc is
// out_of_memory or address_space_exhausted. Host memory that runs out is std::bad_alloc.
[[noreturn]] inline void throw_error(const error &e) {
  if (e.code == std::errc::not_enough_memory) throw std::bad_alloc();
  const std::string text = e.message();
  if (e.is(errc::invalid_argument)) throw std::invalid_argument(text);
  // Of cuda_category, the value is a CUresult. It is the cudaError_t of the same meaning: the
  // runtime has used the driver's numbers since CUDA 10.1 (CUDA Runtime API, cudaError_t).
  int number = 999;  // cudaErrorUnknown
  if (e.is(errc::out_of_memory) || e.is(errc::address_space_exhausted)) {
    number = 2;  // cudaErrorMemoryAllocation
  } else if (e.code.category() == cuda_category()) {
    number = e.code.value();
  } else if (e.is(errc::not_supported)) {
    number = 801;  // cudaErrorNotSupported
  }
  throw cuda::cuda_error(static_cast<cudaError_t>(number), text.c_str());
}

// The same stream. Null is the default stream of the program that includes this header.
inline stream_ref stream_of(cuda::stream_ref s) {
  const cudaStream_t handle = s.get();
  // cudaStreamLegacy: the stream that null names where it is not the thread's.
  if (reinterpret_cast<std::uintptr_t>(handle) == 1) return stream_ref::legacy();
  return stream_ref(handle);
}

// What the copies of a memory_resource share.
class resource_state {
 public:
  explicit resource_state(std::shared_ptr<caching_allocator> a) : allocator_(std::move(a)) {}
  resource_state(const resource_state &) = delete;
  resource_state &operator=(const resource_state &) = delete;
  // The stream's memory stays with an allocator that others own, too.
  ~resource_state() {
    if (!stream_) return;
    if (const status s = allocator_->forget_stream(*stream_); !s) {
      report_background_error(s.error());
    }
  }

  caching_allocator &allocator() const { return *allocator_; }
  const std::shared_ptr<caching_allocator> &shared() const { return allocator_; }

  // The stream of memory that is for all streams; nothing else is queued on it.
  result<const stream *> own_stream() {
    const lock_guard lock(mutex_);
    if (!stream_) {
      auto made = stream::create(allocator_->device());
      if (!made) return tl::unexpected(made.error());
      stream_.emplace(std::move(*made));
    }
    return &*stream_;
  }

 private:
  // Destroyed after the stream.
  const std::shared_ptr<caching_allocator> allocator_;
  mutex mutex_;
  std::optional<stream> stream_ STILLMAP_GUARDED_BY(mutex_);
};

// Satisfies cuda::mr::resource (async_resource in CCCL 3.0 and before) with device_accessible, so it
// converts to resource_ref, any_resource and rmm::device_async_resource_ref.
//
// Lifetime: the copies share the allocator, which lives until the last of them, and of the other
//           owners, is gone; a container keeps what it needs by holding a copy (any_resource), and a
//           resource_ref does not. The last owner's destructor waits for the device and releases all
//           blocks.
// Equality: equal resources have the same allocator: each frees what the others allocated.
// Threads:  safe, copies and one object alike.
// Blocks:   whole multiples of 512 bytes; nullptr for 0 bytes, which deallocate ignores.
// Errors:   allocation throws as throw_error says and has then changed nothing: std::invalid_argument
//           for an alignment that is not a power of two of at most 1 GiB. Deallocation throws nothing
//           (any_resource calls it in a noexcept function); what it cannot do goes to
//           report_background_error, and the memory stays allocated.
// Fork:     in a child of the process, allocation throws and deallocation reports.
class memory_resource {
 public:
  // CCCL's own resources take 256 at most (default_cuda_malloc_alignment).
  static constexpr std::size_t default_alignment = 256;

  // Throws std::invalid_argument for nullptr, and std::bad_alloc. Cost: no driver call.
  explicit memory_resource(std::shared_ptr<caching_allocator> allocator)
      : state_(std::make_shared<resource_state>(checked(std::move(allocator)))) {}
  // Copies only: a resource that was moved from stays usable.
  memory_resource(const memory_resource &) noexcept = default;
  memory_resource &operator=(const memory_resource &) noexcept = default;

  const std::shared_ptr<caching_allocator> &allocator() const noexcept { return state_->shared(); }

#if CCCL_VERSION >= 3001000
  // A block for work queued on `s` from now on.
  // Cost: as caching_allocator::allocate; the host waits for nothing while free memory fits.
  [[nodiscard]] void *allocate(cuda::stream_ref s, std::size_t bytes,
                               std::size_t alignment = default_alignment) {
    return allocate_on(stream_of(s), bytes, alignment);
  }
  // Frees a block that was last used on `s`, whichever stream it was allocated for.
  void deallocate(cuda::stream_ref s, void *block, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = default_alignment) noexcept {
    free_on(stream_of(s), block);
  }
  // A block that every stream, and the host's next call, may use at once.
  // Cost: as allocate, and one cuStreamSynchronize of a stream that has no work but the waits of pages
  //       that come from other streams. The first call creates that stream.
  [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_for_all(bytes, alignment);
  }
  // Requires: all work that uses the block has completed, as CCCL's own resources do.
  void deallocate_sync(void *block, std::size_t /*bytes*/,
                       std::size_t /*alignment*/ = default_alignment) noexcept {
    free_completed(block);
  }
#else
  // As allocate of CCCL 3.1: a block for work queued on `s` from now on.
  [[nodiscard]] void *allocate_async(std::size_t bytes, std::size_t alignment, cuda::stream_ref s) {
    return allocate_on(stream_of(s), bytes, alignment);
  }
  [[nodiscard]] void *allocate_async(std::size_t bytes, cuda::stream_ref s) {
    return allocate_on(stream_of(s), bytes, default_alignment);
  }
  // Frees a block that was last used on `s`, whichever stream it was allocated for.
  void deallocate_async(void *block, std::size_t /*bytes*/, std::size_t /*alignment*/,
                        cuda::stream_ref s) noexcept {
    free_on(stream_of(s), block);
  }
  void deallocate_async(void *block, std::size_t /*bytes*/, cuda::stream_ref s) noexcept {
    free_on(stream_of(s), block);
  }
  // As allocate_sync of CCCL 3.1: a block that every stream may use at once.
  // Cost: as allocate_async, and one cuStreamSynchronize of a stream that has no work but the waits of
  //       pages that come from other streams. The first call creates that stream.
  [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment = default_alignment) {
    return allocate_for_all(bytes, alignment);
  }
  // Requires: all work that uses the block has completed.
  void deallocate(void *block, std::size_t /*bytes*/,
                  std::size_t /*alignment*/ = default_alignment) noexcept {
    free_completed(block);
  }
#endif

#if CCCL_VERSION >= 3002000
  // What any_resource and resource_ref are asked to have where their properties are not spelled out.
  using default_queries = cuda::mr::properties_list<cuda::mr::device_accessible>;
#endif
  friend constexpr void get_property(const memory_resource &,
                                     cuda::mr::device_accessible) noexcept {}

  friend bool operator==(const memory_resource &a, const memory_resource &b) noexcept {
    return a.allocator() == b.allocator();
  }

 private:
  static std::shared_ptr<caching_allocator> checked(std::shared_ptr<caching_allocator> allocator) {
    if (!allocator) throw std::invalid_argument("cccl::memory_resource: the allocator is null");
    return allocator;
  }
  void *allocate_on(stream_ref s, std::size_t bytes, std::size_t alignment) {
    const auto block = state_->allocator().allocate(bytes, s, {.alignment = alignment});
    if (!block) throw_error(block.error());
    return *block;
  }
  void *allocate_for_all(std::size_t bytes, std::size_t alignment) {
    const auto own = state_->own_stream();
    if (!own) throw_error(own.error());
    void *const block = allocate_on(**own, bytes, alignment);
    if (block == nullptr) return nullptr;
    if (const status s = (*own)->synchronize(); !s) {
      free_completed(block);
      throw_error(s.error());
    }
    return block;
  }
  void free_on(stream_ref s, void *block) noexcept {
    if (const status freed = state_->allocator().free(block, s); !freed) {
      report_background_error(freed.error());
    }
  }
  void free_completed(void *block) noexcept {
    if (const status freed = state_->allocator().free(block); !freed) {
      report_background_error(freed.error());
    }
  }

  std::shared_ptr<resource_state> state_;  // never null
};

}  // namespace STILLMAP_CCCL_NAMESPACE
}  // namespace stillmap::cccl
