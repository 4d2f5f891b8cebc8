// Blockers: what keeps the CUDA driver and CRIU from checkpointing this process. docs/criu.md
#pragma once

#include <span>
#include <string>
#include <vector>

#include "stillmap/vmm/device.h"

namespace stillmap::process {

enum class blocker_kind {
  imported,         // mapped memory that another process created and still owns
  handed_off,       // mapped memory that another process created and handed off to this one
  imported_handle,  // imported memory that is mapped nowhere; its owner is unknown
  exported_fd,      // an open file descriptor of exported memory
};

struct blocker {
  blocker_kind kind = blocker_kind::imported;
  int device = -1;      // ordinal; -1: none, or not known
  virtual_range range;  // one page; empty unless the memory is mapped
  std::string tag;      // of the block that contains the range
  int fd = -1;
};

// "device 0, 0x7f12...: 2.0 MiB of tag "kv" belong to another process"
std::string describe(const blocker &b);

// Lists all blockers of this process, in address order of each device. Waits first for mappings
// that are retiring.
// Requires: `devices` are all devices that this process uses.
// Threads:  no page may be mapped or unmapped during the call.
// Cost:     none, unless something is retiring.
std::vector<blocker> find_blockers(std::span<const device> devices);

}  // namespace stillmap::process
