#include "preload/lookup/loaded_objects.h"

#include <link.h>

namespace stillmap::preload {
namespace {

const ElfW(Phdr) * segment_of(const dl_phdr_info &object, const void *address) noexcept {
  const auto a = reinterpret_cast<ElfW(Addr)>(address);
  for (ElfW(Half) i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr) &segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const ElfW(Addr) begin = object.dlpi_addr + segment.p_vaddr;
    if (a >= begin && a - begin < segment.p_memsz) return &segment;
  }
  return nullptr;
}

elf_object read(const dl_phdr_info &object) noexcept {
  for (ElfW(Half) i = 0; i < object.dlpi_phnum; ++i) {
    const ElfW(Phdr) &segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_DYNAMIC) continue;
    return {object.dlpi_addr,
            reinterpret_cast<const ElfW(Dyn) *>(object.dlpi_addr + segment.p_vaddr)};
  }
  return {object.dlpi_addr, nullptr};
}

// Calls look(object) for each, until it returns true. The loader's lists do not change meanwhile.
template <class Look>
bool any_object(Look look) noexcept {
  const auto visit = [](dl_phdr_info *object, std::size_t, void *to) {
    return (*static_cast<Look *>(to))(*object) ? 1 : 0;
  };
  return ::dl_iterate_phdr(visit, &look) != 0;
}

const char here = 0;  // an address in this library

}  // namespace

bool is_ours(const void *address) noexcept {
  return any_object([&](const dl_phdr_info &o) {
    return segment_of(o, address) != nullptr && segment_of(o, &here) != nullptr;
  });
}

bool is_code(const void *address) noexcept {
  return any_object([&](const dl_phdr_info &o) {
    const ElfW(Phdr) *const segment = segment_of(o, address);
    return segment != nullptr && (segment->p_flags & PF_X) != 0;
  });
}

bool in_first_namespace(const void *address) noexcept {
  return any_object([&](const dl_phdr_info &o) { return segment_of(o, address) != nullptr; });
}

bool is_before_us(const void *address) noexcept {
  bool before = false;
  any_object([&](const dl_phdr_info &o) {
    if (segment_of(o, &here) != nullptr) return true;
    before = before || segment_of(o, address) != nullptr;
    return before;
  });
  return before;
}

bool wraps_behind_us(const void *address, const char *function) noexcept {
  bool behind = false, wraps = false;
  any_object([&](const dl_phdr_info &o) {
    if (segment_of(o, &here) != nullptr) behind = true;
    if (segment_of(o, address) == nullptr) return false;
    wraps = behind && read(o).function(function) != nullptr;
    return true;
  });
  return wraps;
}

bool is_in_program(const void *address) noexcept {
  bool in = false;
  any_object([&](const dl_phdr_info &o) {
    in = segment_of(o, address) != nullptr;
    return true;
  });
  return in;
}

definition find_first(const char *name) noexcept {
  definition found;
  any_object([&](const dl_phdr_info &o) {
    if (segment_of(o, &here) != nullptr) return false;
    const elf_object object = read(o);
    found = {object.function(name), object.variable(name)};
    return found.function != nullptr || found.variable != nullptr;
  });
  return found;
}

void *find_behind(const void *address, const char *function) noexcept {
  bool behind = address == nullptr;
  void *found = nullptr;
  any_object([&](const dl_phdr_info &o) {
    if (behind && segment_of(o, &here) == nullptr) found = read(o).function(function);
    if (!behind && segment_of(o, address) != nullptr) behind = true;
    return found != nullptr;
  });
  return found;
}

void *find_behind_us(const char *function) noexcept {
  return find_behind(&here, function);
}

unsigned long long objects_loaded() noexcept {
  unsigned long long loaded = 0;
  any_object([&](const dl_phdr_info &o) {
    loaded = o.dlpi_adds;
    return true;
  });
  return loaded;
}

void for_each_object(void (*visit)(const elf_object &, void *context), void *context) {
  any_object([&](const dl_phdr_info &o) {
    if (segment_of(o, &here) == nullptr) visit(read(o), context);
    return false;
  });
}

}  // namespace stillmap::preload
