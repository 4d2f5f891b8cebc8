// Objects that are never destroyed, because destructors of the program's statics may still use them,
// and that take no host memory, because functions that cannot fail use them.
#pragma once

#include <cstddef>
#include <new>

namespace stillmap {

template <class T>
class undying {
 public:
  undying() noexcept { ::new (static_cast<void *>(&storage_)) T; }
  undying(const undying &) = delete;
  T &operator*() noexcept { return *std::launder(reinterpret_cast<T *>(&storage_)); }

 private:
  alignas(T) std::byte storage_[sizeof(T)];
};

}  // namespace stillmap
