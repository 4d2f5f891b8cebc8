// The handles of cuMemCreate and of imported memory by their values.
//
// A value names a slot and how often that slot has been used before. So it is never used again, and neither
// finding nor adding a handle hashes or, once there have been as many, allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hostcuda/src/cuda_names.h"

namespace hostcuda {

struct physical;

// A CUmemGenericAllocationHandle. Lives while the program holds it or it is mapped.
struct vmm_handle {
  CUmemGenericAllocationHandle value = 0;
  physical *memory = nullptr;
  CUmemAllocationProp prop{};
  std::uint64_t held = 0;
  std::uint64_t mappings = 0;
  vmm_handle *next_free = nullptr;  // of a slot without memory
};

class handle_table {
 public:
  // The result stays where it is until it is erased.
  vmm_handle &add(physical *memory) {
    if (free_ == nullptr) add_block();
    vmm_handle &h = *free_;
    free_ = h.next_free;
    h.memory = memory;
    return h;
  }

  // Returns nullptr if there is no such handle.
  vmm_handle *find(CUmemGenericAllocationHandle value) {
    const std::size_t slot = value % use - first;
    if (slot >= blocks_.size() * block) return nullptr;
    vmm_handle &h = blocks_[slot / block][slot % block];
    return h.value == value && h.memory != nullptr ? &h : nullptr;
  }

  void erase(vmm_handle &h) {
    h = {h.value + use, nullptr, {}, 0, 0, free_};
    free_ = &h;
  }

  template <class Visit>
  void each(Visit visit) {
    for (const auto &slots : blocks_)
      for (std::size_t i = 0; i < block; ++i)
        if (slots[i].memory != nullptr) visit(slots[i]);
  }

 private:
  static constexpr CUmemGenericAllocationHandle first = 0x10000;
  static constexpr CUmemGenericAllocationHandle use = CUmemGenericAllocationHandle{1} << 32;

  static constexpr std::size_t block = 256;

  void add_block() {
    const std::size_t before = blocks_.size() * block;
    auto &slots = blocks_.emplace_back(std::make_unique<vmm_handle[]>(block));
    for (std::size_t i = block; i-- > 0;) {
      slots[i].value = first + before + i;
      slots[i].next_free = free_;
      free_ = &slots[i];
    }
  }

  std::vector<std::unique_ptr<vmm_handle[]>> blocks_;
  vmm_handle *free_ = nullptr;
};

}  // namespace hostcuda
