#include "stillmap/checkpoint/base/aligned_memory.h"

#include <algorithm>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {

result<aligned_memory> aligned_memory::create(std::size_t bytes) {
  const operation_scope scope("aligned_memory::create");
  aligned_memory m;
  const std::size_t rounded = whole_blocks(std::max<std::size_t>(bytes, 1));
  m.memory_.reset(static_cast<std::byte *>(std::aligned_alloc(io_block_bytes, rounded)));
  if (!m.memory_) {
    return make_error(errc::out_of_memory, "no host memory for a buffer", rounded, 0,
                      error_unit::bytes);
  }
  m.size_ = bytes;
  return m;
}

status aligned_memory::grow(std::size_t bytes) {
  const operation_scope scope("aligned_memory::grow");
  if (size_ >= bytes) return {};
  STILLMAP_ASSIGN_OR_RETURN(*this, create(bytes));
  return {};
}

}  // namespace stillmap::checkpoint
