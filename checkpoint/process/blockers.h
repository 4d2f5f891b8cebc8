// What keeps a process from being saved whole, by the driver and CRIU together. docs/criu.md
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"

namespace stillmap::process {

enum class obstacle_kind {
  imported,         // mapped memory that another process created and has too
  taken_over,       // mapped memory that another process created, and that is this one's by handoff
  imported_handle,  // the same as either, held without an address: nobody here can tell by whom
  exported_fd,      // an open file descriptor of memory
};

struct obstacle {
  obstacle_kind kind = obstacle_kind::imported;
  int device = -1;      // ordinal; -1: it does not matter, or is not known
  virtual_range range;  // one page, of the first two kinds
  std::string tag;      // of the block it is in
  int fd = -1;
};

// "device 0, 0x7f12...: 2.0 MiB of tag "kv" belong to another process"
std::string describe(const obstacle &o);

// Everything that is in the way in this process, in address order of each device.
// Retiring mappings that were such are waited for. Requires: `devices` is all that are in use.
// Threads: none of the memory may change its pages meanwhile. Cost: none, unless something retires.
std::vector<obstacle> obstacles(std::span<const device> devices);

}  // namespace stillmap::process
