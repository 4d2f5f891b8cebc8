// The page groups of a fixed number of blocks, for the arenas that address memory by block ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "stillmap/allocators/kv/internal/group_store.h"
#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::kv {

struct block_store_options {
  kv::shape shape{};
  std::size_t tokens_per_block = 0;
  std::size_t blocks = 0;
  std::uint32_t layers_per_range = 0;
  std::shared_ptr<page_pool>
      pool{};  // empty: one of its own, whose free pages the worker gives back
  std::string tag{};
};

struct block_store {
  kv::layout layout;
  std::unique_ptr<group_store> groups;
};

// Errors: those of layout::create, choose_pool and group_store::create; invalid_argument (no blocks, or more than
//         2^32 - 2 or than any address space has: value, limit).
result<block_store> create_block_store(const device &d, block_store_options options);

}  // namespace stillmap::kv
