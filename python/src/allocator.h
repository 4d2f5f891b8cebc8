// caching_allocator as the class CachingAllocator.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "python/src/gil.h"
#include "stillmap/allocators/caching_allocator.h"
#include "stillmap/allocators/torch/internal/torch_settings.h"

namespace stillmap::python {

// What plug-in points of C code hold: a C caller may be late, after the allocator's end. Never freed.
struct c_allocator {
  static constexpr std::size_t no_set = SIZE_MAX;
  std::atomic<std::shared_ptr<caching_allocator>> heap;
  int device = 0;
  bool may_wait = false;     // for other processes
  std::size_t set = no_set;  // of the functions without a parameter
};

// Calls Python when memory runs out. Outlives neither the interpreter nor its wrapper: it is emptied
// by the wrapper, with the GIL, while the allocator may still hold it.
struct out_of_memory_callback {
  nb::object function;
  bool operator()(std::size_t bytes);
};

// Threads: with the GIL. Calls work on a copy of the pointer, so that close() in another thread
//          leaves them an allocator; the last of them releases the memory.
class python_allocator {
 public:
  python_allocator(int ordinal, const std::string &tag, caching_allocator_options options,
                   std::optional<share_settings> share, nb::object on_out_of_memory);
  ~python_allocator() { close(); }
  python_allocator(const python_allocator &) = delete;
  python_allocator &operator=(const python_allocator &) = delete;

  // Raises InvalidArgumentError after close().
  std::shared_ptr<caching_allocator> use(const char *operation) const;
  std::uint64_t allocate(std::size_t bytes, stream_ref s, allocate_options options);
  void close();
  bool closed() const { return !heap_; }
  c_allocator *for_c();

  int ordinal() const { return ordinal_; }
  const std::string &tag() const { return tag_; }
  const std::shared_ptr<out_of_memory_callback> &callback() const { return callback_; }

 private:
  std::shared_ptr<caching_allocator> heap_;
  std::shared_ptr<out_of_memory_callback> callback_;
  c_allocator *for_c_ = nullptr;
  bool has_quota_ = false;
  int ordinal_;
  std::string tag_;
};

// The addresses of the functions that a c_allocator is passed to.
std::uint64_t c_malloc_address();
std::uint64_t c_free_address();

// Those of one allocator, for callers that have no parameter to pass. With the GIL.
// Raises NotSupportedError: the process has no more of them.
struct c_function_addresses {
  std::uint64_t allocate = 0, free = 0, empty_cache = 0;
};
c_function_addresses c_functions_of(c_allocator &of);

// The arguments `share` and `share_limit`. With the GIL. Raises InvalidArgumentError: a limit without a name, or 0.
std::optional<share_settings> share_of(const char *operation,
                                       const std::optional<std::string> &name,
                                       std::optional<std::uint64_t> limit);

// The statistics under the names of caching_allocator_stats. With the GIL.
nb::dict dict_of_stats(const caching_allocator_stats &s, std::size_t limit);

void bind_allocator(nb::module_ &m);

}  // namespace stillmap::python
