// Host memory that this process can still take: the smallest of what the machine and every memory
// control group (v1 and v2, with all groups around it) have left. docs/suspend.md
#pragma once

#include <cstdint>
#include <string>

#include "stillmap/vmm/base/error.h"

namespace stillmap::checkpoint {

struct host_room {
  std::uint64_t bytes = UINT64_MAX;  // available; UINT64_MAX: unknown
  std::string limit{};               // the file that sets it: "/sys/fs/cgroup/job/memory.max"
};

// Memory that the kernel can reclaim at once, such as the page cache, counts as available. Locked
// memory (RLIMIT_MEMLOCK) is no limit: CUDA drivers pin without it.
// `root` precedes every path that is read: the folder of a test with a /proc and a /sys of its own.
// Threads: safe. Cost: no driver call; some ten small files are read.
host_room available_host_memory(const std::string &root = {});

// Fails unless the process can take `bytes` more, with what the kernel and the driver need to keep
// track of them. To be asked before memory is pinned or touched: past the limit of a control group
// the kernel kills the process, instead of refusing.
// `advice` is the reason of the error, and says what to do.
// Errors: out_of_memory (value = bytes, limit = bytes that are available, subject = the file that
//         sets the limit).
status check_host_room(std::uint64_t bytes, const char *advice, const std::string &root = {});

}  // namespace stillmap::checkpoint
