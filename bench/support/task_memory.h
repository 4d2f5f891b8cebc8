// Pages mapped at a fixed address, as the memory of a task that another process takes over.
#pragma once

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::bench {

// Far from where a kernel puts things, so that the other process has the addresses free too.
inline constexpr device_address task_begin{0x2000'0000'0000};

// The tag is "task". `options`: of the pool that the pages come from.
result<checkpoint::restored_memory> make_task_memory(const device &d, std::size_t pages,
                                                     page_pool_options options = {});

}  // namespace stillmap::bench
