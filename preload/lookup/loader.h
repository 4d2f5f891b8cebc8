// The loader's functions as the program would have found them without this library: those of libc, or of another
// library that replaces them and is loaded behind this one.
#pragma once

#include <atomic>

#include "preload/lookup/loaded_objects.h"

namespace stillmap::preload {

// One such function, found at its first use, which may come before any constructor has run.
template <class Function>
class loader_function {
 public:
  constexpr explicit loader_function(const char *name) : name_(name) {}
  // Null: nothing behind this library has it.
  Function *get() noexcept {
    Function *f = found_.load(std::memory_order_relaxed);
    if (f == nullptr) {
      f = reinterpret_cast<Function *>(find_behind_us(name_));
      found_.store(f, std::memory_order_relaxed);
    }
    return f;
  }

 private:
  const char *name_;
  std::atomic<Function *> found_{nullptr};
};

inline constinit loader_function<void *(void *, const char *)> next_dlsym("dlsym");
inline constinit loader_function<void *(void *, const char *, const char *)> next_dlvsym("dlvsym");
inline constinit loader_function<void *(const char *, int)> next_dlopen("dlopen");
inline constinit loader_function<void *(long, const char *, int)> next_dlmopen("dlmopen");

}  // namespace stillmap::preload
