// The page pool of an arena, and what it could still get.
#pragma once

#include <memory>

#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::kv {

// Where `pool` is empty, creates one that keeps free pages until it is trimmed: group_store::options::trims_pool.
// Errors: not_supported (no virtual memory), invalid_argument (another device's pool).
status choose_pool(const device &d, std::shared_ptr<page_pool> &pool);

// How many of `bytes` the pool neither has nor can get: of the device, within its limit and quota. Cost: a query of the
// device and of the quota.
result<std::size_t> missing_memory(const device &d, const page_pool &pool, std::size_t bytes);

}  // namespace stillmap::kv
