#include "preload/lookup/elf_object.h"

#include <cstring>

namespace stillmap::preload {

elf_object::elf_object(ElfW(Addr) base, const ElfW(Dyn) * dynamic) noexcept : base_(base) {
  if (dynamic == nullptr) return;
  // The loader has added the base to addresses of the section, except where the section is read-only.
  const auto at = [base](ElfW(Addr) value) { return value < base ? base + value : value; };
  std::size_t jump_bytes = 0, data_bytes = 0;
  const ElfW(Rela) *jumps = nullptr, *data = nullptr;
  for (const ElfW(Dyn) *d = dynamic; d->d_tag != DT_NULL; ++d) {
    switch (d->d_tag) {
      case DT_SYMTAB:
        symbols_ = reinterpret_cast<const ElfW(Sym) *>(at(d->d_un.d_ptr));
        break;
      case DT_STRTAB:
        names_ = reinterpret_cast<const char *>(at(d->d_un.d_ptr));
        break;
      case DT_GNU_HASH:
        gnu_hash_ = reinterpret_cast<const std::uint32_t *>(at(d->d_un.d_ptr));
        break;
      case DT_HASH:
        sysv_hash_ = reinterpret_cast<const std::uint32_t *>(at(d->d_un.d_ptr));
        break;
      case DT_JMPREL:
        jumps = reinterpret_cast<const ElfW(Rela) *>(at(d->d_un.d_ptr));
        break;
      case DT_PLTRELSZ:
        jump_bytes = d->d_un.d_val;
        break;
      case DT_RELA:
        data = reinterpret_cast<const ElfW(Rela) *>(at(d->d_un.d_ptr));
        break;
      case DT_RELASZ:
        data_bytes = d->d_un.d_val;
        break;
      default:
        break;
    }
  }
  if (symbols_ == nullptr) return;
  if (jumps != nullptr) jumps_ = {jumps, jump_bytes / sizeof(ElfW(Rela))};
  if (data != nullptr) data_ = {data, data_bytes / sizeof(ElfW(Rela))};
}

bool elf_object::matches(const ElfW(Sym) & symbol, const char *name, kind wanted) const noexcept {
  const auto type = ELF64_ST_TYPE(symbol.st_info);
  const bool right =
      wanted == kind::variable ? type == STT_OBJECT : type == STT_FUNC || type == STT_GNU_IFUNC;
  return right && symbol.st_shndx != SHN_UNDEF && symbol.st_value != 0 &&
         std::strcmp(names_ + symbol.st_name, name) == 0;
}

// Source: the ELF gABI, "Hash Table", and the GNU hash section as the GNU linker writes it.
const ElfW(Sym) * elf_object::find_gnu(const char *name, kind wanted) const noexcept {
  std::uint32_t hash = 5381;
  for (const char *c = name; *c != 0; ++c) hash = hash * 33 + static_cast<unsigned char>(*c);
  const std::uint32_t bucket_count = gnu_hash_[0], first_symbol = gnu_hash_[1],
                      filter_words = gnu_hash_[2];
  if (bucket_count == 0) return nullptr;
  const auto *const filter = reinterpret_cast<const ElfW(Addr) *>(gnu_hash_ + 4);
  const auto *const buckets = reinterpret_cast<const std::uint32_t *>(filter + filter_words);
  const std::uint32_t *const chains = buckets + bucket_count;
  std::uint32_t index = buckets[hash % bucket_count];
  if (index < first_symbol) return nullptr;
  for (;; ++index) {
    const std::uint32_t entry = chains[index - first_symbol];
    if ((entry | 1U) == (hash | 1U) && matches(symbols_[index], name, wanted))
      return &symbols_[index];
    if ((entry & 1U) != 0) return nullptr;
  }
}

const ElfW(Sym) * elf_object::find_sysv(const char *name, kind wanted) const noexcept {
  std::uint32_t hash = 0;
  for (const char *c = name; *c != 0; ++c) {
    hash = (hash << 4) + static_cast<unsigned char>(*c);
    hash = (hash ^ (hash >> 24 & 0xf0U)) & 0x0fffffffU;
  }
  const std::uint32_t bucket_count = sysv_hash_[0];
  if (bucket_count == 0) return nullptr;
  const std::uint32_t *const chains = sysv_hash_ + 2 + bucket_count;
  for (std::uint32_t i = sysv_hash_[2 + hash % bucket_count]; i != STN_UNDEF; i = chains[i]) {
    if (matches(symbols_[i], name, wanted)) return &symbols_[i];
  }
  return nullptr;
}

const ElfW(Sym) * elf_object::find(const char *name, kind wanted) const noexcept {
  if (symbols_ == nullptr || (gnu_hash_ == nullptr && sysv_hash_ == nullptr)) return nullptr;
  return gnu_hash_ != nullptr ? find_gnu(name, wanted) : find_sysv(name, wanted);
}

void *elf_object::variable(const char *name) const noexcept {
  const ElfW(Sym) *const symbol = find(name, kind::variable);
  return symbol != nullptr ? reinterpret_cast<void *>(base_ + symbol->st_value) : nullptr;
}

void *elf_object::function(const char *name) const noexcept {
  const ElfW(Sym) *const symbol = find(name, kind::function);
  if (symbol == nullptr) return nullptr;
  auto *const address = reinterpret_cast<void *>(base_ + symbol->st_value);
  if (ELF64_ST_TYPE(symbol->st_info) != STT_GNU_IFUNC) return address;
  return reinterpret_cast<void *(*)()>(address)();
}

}  // namespace stillmap::preload
