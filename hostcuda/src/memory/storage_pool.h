// Storage of the registry's many small objects of one type, in blocks. What is given back serves the next
// one, and nothing returns to the host. Under AddressSanitizer each object has its own, so that a use after
// its end is found. std::pmr::unsynchronized_pool_resource takes some 180 instructions for each object and
// its end, as malloc does, which is a fifth of a cuMemMap. Requires the_memory().mutex.
#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace hostcuda {

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool storage_is_kept = false;
#else
inline constexpr bool storage_is_kept = true;
#endif

template <class T>
class storage_pool {
 public:
  static void *take() {
    if constexpr (!storage_is_kept) return ::operator new(sizeof(T));
    if (free_ == nullptr) add_block();
    return std::exchange(free_, free_->next);
  }
  static void give(void *at) {
    if constexpr (!storage_is_kept) {
      ::operator delete(at);
    } else {
      free_ = new (at) spare{free_};
    }
  }

 private:
  struct spare {
    spare *next;
  };

  static void add_block() {
    constexpr std::size_t count = 256;
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    auto *const block = static_cast<char *>(::operator new(count * sizeof(T)));
    for (std::size_t i = count; i-- > 0;) give(block + i * sizeof(T));  // the lowest is taken first
  }

  inline static constinit spare *free_ = nullptr;
};

// For the nodes of a std::map.
template <class T>
struct pool_allocator {
  using value_type = T;

  pool_allocator() = default;
  template <class U>
  pool_allocator(const pool_allocator<U> &) {}

  T *allocate(std::size_t) { return static_cast<T *>(storage_pool<T>::take()); }
  void deallocate(T *at, std::size_t) { storage_pool<T>::give(at); }
  template <class U>
  bool operator==(const pool_allocator<U> &) const {
    return true;
  }
};

}  // namespace hostcuda
