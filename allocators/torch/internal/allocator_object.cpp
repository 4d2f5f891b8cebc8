#include "stillmap/allocators/torch/internal/allocator_object.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::torch_plugin {
namespace {

// Of a table of virtual functions: two words in front, and more functions than PyTorch's allocators have. A
// copy takes words behind the table along, which nothing calls.
constexpr std::size_t words_in_front = 2;
constexpr std::size_t most_functions = 96;
using function_table = std::array<void *, words_in_front + most_functions>;

constexpr const char *pluggable_table =
    "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE";

// An object begins with the address of the first function in its table.
void **&table_of(void *object) {
  return *static_cast<void ***>(object);
}

}  // namespace

result<allocator_object> allocator_object::current() {
  // Found by its name because PyTorch has loaded it; it stays loaded.
  void *const library = ::dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_NOW);
  auto *const used = library == nullptr
                         ? nullptr
                         : static_cast<std::atomic<void *> *>(
                               ::dlsym(library, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  void *const self = used == nullptr ? nullptr : used->load();
  if (self == nullptr) return make_error(errc::not_supported, "PyTorch is not loaded");
  return allocator_object(library, self);
}

void *allocator_object::address_of(const char *name) const {
  return ::dlsym(library_, name);
}

void **allocator_object::entry(const char *name) const {
  void **const table = find<void **>(pluggable_table);
  void *const wanted = address_of(name);
  if (table == nullptr || wanted == nullptr) return nullptr;
  void **const begin = table + words_in_front;
  void **const at = std::find(begin, begin + most_functions, wanted);
  return at == begin + most_functions ? nullptr : table_of(self_) + (at - begin);
}

bool allocator_object::pluggable(const void *object) const {
  void **const table = find<void **>(pluggable_table);
  return table != nullptr && *static_cast<void **const *>(object) == table + words_in_front;
}

status allocator_object::replace(const char *name, void *mine) const {
  void **const at = entry(name);
  if (at == nullptr) {
    return make_error(errc::not_supported, "this version of PyTorch has another allocator");
  }
  if (*at == mine) return {};
  void **&of_object = table_of(self_);
  return with_host_memory([&]() -> status {
    auto made = std::make_unique<function_table>();
    std::copy_n(of_object - words_in_front, made->size(), made->begin());
    (*made)[words_in_front + static_cast<std::size_t>(at - of_object)] = mine;
    // Never freed: the object is PyTorch's, and lives as long as the process.
    std::atomic_ref<void **>(of_object).store(made.release()->data() + words_in_front,
                                              std::memory_order_release);
    return {};
  });
}

}  // namespace stillmap::torch_plugin
