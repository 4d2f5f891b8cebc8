// An encoded record in device memory, so that it goes where the arena's memory goes: its length, and its bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::prefix_cache {

// Memory that can be handed off, with this tag.
// Errors: invalid_argument (over max_table_bytes: value, limit), those of the buffer.
result<growable_buffer> write_record(const device &d, const std::string &tag,
                                     std::span<const std::byte> bytes);
// Errors: invalid_argument (no memory has the tag, or more than one block), corrupt (not what write_record() wrote),
//         the driver's.
result<std::vector<std::byte>> read_record(const checkpoint::restored_memory &from,
                                           const std::string &tag);

}  // namespace stillmap::prefix_cache
