// Blocks of this process whose pages were published by another process: a checkpoint refers to them, and does
// not copy them. docs/publication.md#checkpoints
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/published_reference.h"
#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

// Owner of the registration of some blocks. Threads: safe, also across objects and modules.
class published_blocks {
 public:
  published_blocks() = default;
  // Requires: the blocks are registered by nobody else.
  static result<published_blocks> add(const device &d, std::vector<published_reference> blocks);
  published_blocks(published_blocks &&o) noexcept
      : space_(o.space_), blocks_(std::exchange(o.blocks_, {})) {}
  // By swapping: the destructor of `o` removes the blocks that were here.
  published_blocks &operator=(published_blocks &&o) noexcept {
    std::swap(space_, o.space_);
    std::swap(blocks_, o.blocks_);
    return *this;
  }
  ~published_blocks();

  // What is registered for the block that begins there.
  static std::optional<published_reference> find(const device &d, device_address begin);

 private:
  const address_space *space_ = nullptr;  // of the device: the same for all of its handles
  std::vector<device_address> blocks_;
};

}  // namespace stillmap::checkpoint
