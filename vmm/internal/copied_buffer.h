// A growable buffer without VMM: one cuMemAlloc allocation, which grows by copying.
#pragma once

#include "stillmap/vmm/internal/buffer_impl.h"

namespace stillmap {

result<std::unique_ptr<buffer_impl>> make_copied_buffer(const device &d, buffer_options options);

}  // namespace stillmap
