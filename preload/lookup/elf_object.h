// A loaded ELF object: which symbols it defines, and the slots through which it calls those of others.
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace stillmap::preload {

// Reads the dynamic section in memory. Allocates nothing, and calls no function that this library replaces.
// Requires: the object stays loaded.
class elf_object {
 public:
  explicit elf_object(const link_map &map) noexcept : elf_object(map.l_addr, map.l_ld) {}
  // `dynamic` null: an object without symbols.
  elf_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept;

  // The address of the function that the object defines under this name, whatever its version; nullptr: none,
  // or it is no function.
  void *function(const char *name) const noexcept;
  // The address of the variable that it defines under this name; nullptr: none, or it is no variable.
  void *variable(const char *name) const noexcept;

  // Calls visit(name, slot) for each slot that the loader fills with the address of a named symbol.
  template <class Visit>
  void for_each_slot(Visit visit) const {
    for (const auto &relocations : {jumps_, data_}) {
      for (const ElfW(Rela) & r : relocations) {
        const auto type = ELF64_R_TYPE(r.r_info);
        if (type != jump_slot && type != data_slot && type != absolute) continue;
        const ElfW(Sym) &symbol = symbols_[ELF64_R_SYM(r.r_info)];
        if (r.r_addend != 0 || symbol.st_name == 0) continue;
        visit(names_ + symbol.st_name, reinterpret_cast<void **>(base_ + r.r_offset));
      }
    }
  }

 private:
#if defined(__x86_64__)
  static constexpr auto jump_slot = R_X86_64_JUMP_SLOT, data_slot = R_X86_64_GLOB_DAT,
                        absolute = R_X86_64_64;
#elif defined(__aarch64__)
  static constexpr auto jump_slot = R_AARCH64_JUMP_SLOT, data_slot = R_AARCH64_GLOB_DAT,
                        absolute = R_AARCH64_ABS64;
#else
#error "the preload knows x86-64 and AArch64"
#endif

  enum class kind : bool { function, variable };
  const ElfW(Sym) * find(const char *name, kind wanted) const noexcept;
  const ElfW(Sym) * find_gnu(const char *name, kind wanted) const noexcept;
  const ElfW(Sym) * find_sysv(const char *name, kind wanted) const noexcept;
  bool matches(const ElfW(Sym) & symbol, const char *name, kind wanted) const noexcept;

  ElfW(Addr) base_;
  const ElfW(Sym) *symbols_ = nullptr;
  const char *names_ = "";
  const std::uint32_t *gnu_hash_ = nullptr;
  const std::uint32_t *sysv_hash_ = nullptr;
  std::span<const ElfW(Rela)> jumps_, data_;
};

}  // namespace stillmap::preload
