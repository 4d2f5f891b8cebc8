// Blocks of this process whose pages are published: a checkpoint refers to them, and does not copy them.
// docs/publication.md#checkpoints
#pragma once

#include <optional>
#include <vector>

#include "stillmap/checkpoint/common/published_reference.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

// Registers blocks, for as long as they exist. A block that is registered again has the later reference.
// Errors:  invalid_argument (no block begins there: value = the address).
// Threads: safe.
// Cost:    no driver call.
status register_published(const device &d, std::vector<published_reference> blocks);

// What is registered for this block. Nothing if none of its pages is another process's, too: then all of them are
// copies of this process.
// Threads: safe. Cost: no driver call.
std::optional<published_reference> find_published(const device &d, const block_record &block);

}  // namespace stillmap::checkpoint
