#include "preload/lookup/bind_slots.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "preload/functions/function_list.h"
#include "preload/functions/known_device.h"
#include "preload/lookup/elf_object.h"
#include "preload/lookup/loaded_objects.h"

namespace stillmap::preload {
namespace {

// What a slot for this name is to hold, or nullptr: it is not ours to change.
void *replacement_for(const char *name) noexcept {
  if (const auto f = find_symbol(name)) return wrapper_of(*f);
  const std::string_view s = name;
  if (s == "dlsym") return reinterpret_cast<void *>(&::dlsym);
  if (s == "dlvsym") return reinterpret_cast<void *>(&::dlvsym);
  if (s == "dlopen") return reinterpret_cast<void *>(&::dlopen);
  if (s == "dlmopen") return reinterpret_cast<void *>(&::dlmopen);
  return nullptr;
}

// The loader may have made the page read-only (RELRO). A page that cannot be written stays as it is.
void write_slot(void **slot, void *value) noexcept {
  const auto page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  auto *const page =
      reinterpret_cast<void *>(reinterpret_cast<std::uintptr_t>(slot) & ~(page_bytes - 1));
  if (::mprotect(page, page_bytes, PROT_READ | PROT_WRITE) != 0) return;
  __atomic_store_n(slot, value, __ATOMIC_RELEASE);
}

// `find` finds a function in the namespace of the object.
template <class Find>
void bind(const elf_object &object, Find find) noexcept {
  object.for_each_slot([&](const char *name, void **slot) {
    void *const ours = replacement_for(name);
    if (ours == nullptr || *slot == ours || object.function(name) != nullptr) return;
    // An interposer before this library is what the call is to reach first.
    if (is_before_us(*slot)) return;
    void *const theirs = find(name);
    if (theirs == nullptr) return;
    if (const auto f = find_symbol(name)) set_next(*f, theirs);
    write_slot(slot, ours);
  });
}

}  // namespace

void bind_new_objects(std::size_t known) noexcept {
  // The list is locked while it is visited, and what is called here visits it once more: the lock is recursive.
  for_each_object(
      [](const elf_object &object, void *to_skip) {
        auto &skip = *static_cast<std::size_t *>(to_skip);
        if (skip != 0) {
          --skip;
          return;
        }
        bind(object, [](const char *name) {
          return find_first(name).variable == nullptr ? find_behind_us(name) : nullptr;
        });
      },
      &known);
}

std::size_t objects_here() noexcept {
  std::size_t count = 0;
  for_each_object([](const elf_object &, void *to) { ++*static_cast<std::size_t *>(to); }, &count);
  return count;
}

void unbind_variables() noexcept {
  static constinit std::atomic<unsigned long long> checked{0};
  const unsigned long long loaded = objects_loaded();
  if (checked.exchange(loaded, std::memory_order_relaxed) == loaded) return;
  bool any = false;
  for_each_object(
      [](const elf_object &object, void *there) {
        if (object.variable("cuInit") != nullptr) *static_cast<bool *>(there) = true;
      },
      &any);
  if (!any) return;
  for_each_object(
      [](const elf_object &object, void *) {
        object.for_each_slot([](const char *name, void **slot) {
          const auto f = find_symbol(name);
          if (!f || *slot != wrapper_of(*f)) return;
          if (void *const variable = find_first(name).variable) write_slot(slot, variable);
        });
      },
      nullptr);
}

void bind_namespace_of(const link_map *member) noexcept {
  known_device::never_again();  // these calls pass no wrapper
  const link_map *first = member;
  while (first->l_prev != nullptr) first = first->l_prev;
  for (const link_map *m = first; m != nullptr; m = m->l_next) {
    bind(elf_object(*m), [&](const char *name) -> void * {
      // One driver for all calls: that of the first namespace, where it has one.
      if (void *const found = find_behind_us(name)) return found;
      for (const link_map *other = first; other != nullptr; other = other->l_next) {
        if (void *const found = elf_object(*other).function(name)) return found;
      }
      return nullptr;
    });
  }
}

}  // namespace stillmap::preload
