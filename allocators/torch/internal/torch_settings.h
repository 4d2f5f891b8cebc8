// The settings of the library that PyTorch loads: what a caller states, and environment variables.
// Internal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/allocators/device_share.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

struct settings {
  std::size_t limit = SIZE_MAX;  // STILLMAP_TORCH_LIMIT: bytes for each device, "40GiB", "500MiB"
  bool peers = true;  // STILLMAP_TORCH_PEERS=0: devices that can access the blocks may not
  std::string tag = "caching_allocator";  // STILLMAP_TORCH_TAG: for suspend and snapshot
  std::size_t page_bytes = 0;  // STILLMAP_TORCH_PAGE_SIZE: caching_allocator_options::page_bytes
  std::size_t soft_limit = SIZE_MAX;  // caching_allocator_options::soft_limit
  share_settings share{};             // STILLMAP_SHARE=gpu0:60GiB
  bool exportable = false;  // STILLMAP_TORCH_EXPORTABLE=1: other processes can map the pages
};

// What a caller states. It wins over the variable; of two limits the smaller one holds.
struct stated_settings {
  std::optional<std::size_t> limit;
  std::optional<bool> peers;
  std::optional<std::string> tag;
  std::optional<std::size_t> page_bytes;
  std::optional<share_settings> share{};  // with an empty name: none, whatever the variable says
  std::optional<bool> exportable{};
};

// Errors: invalid_argument (a variable has another value; the subject is its name).
result<settings> read_settings(const stated_settings &stated = {});

}  // namespace stillmap::torch_plugin
