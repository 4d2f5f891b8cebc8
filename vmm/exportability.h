// Reports by which methods a range of device memory can be exported: for each method, whether it works
// on exactly these bytes, why not, and what to do. Reads the ledger; makes no driver call.
// docs/exportability.md#exportability
//
// A report describes the moment of the call: it is outdated when the generation of the range rises.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/device.h"

namespace stillmap {

enum class sharing {
  legacy_ipc,  // cuIpcGetMemHandle: one handle for one allocation, another process opens it
  posix_fd,    // a file descriptor per page, sent over a Unix socket
  fabric,      // a 64-byte handle per page, for machines that share an NVLink fabric
  rdma,        // registering with a network card (ibv_reg_mr, UCX, NCCL)
};
inline constexpr std::size_t sharing_count = 4;
const char *name_of(sharing how) noexcept;  // "legacy IPC", "file descriptors", ...

enum class sharing_verdict {
  works,     // one call over the whole range
  in_parts,  // one call per mapping: a query of the enclosing allocation sees only the first
  refused,
};

struct sharing_answer {
  sharing how = sharing::legacy_ipc;
  sharing_verdict verdict = sharing_verdict::refused;
  const char *reason = "";  // one clause
  const char *advice = "";  // what to do; empty where there is nothing to do
  // The first address that stands in the way; for in_parts, where the second part begins.
  device_address at;
};

struct exportability_report {
  virtual_range range;
  std::size_t mappings = 0;        // that touch the range, retiring ones left out
  std::size_t mapped_bytes = 0;    // of the range, with pages behind them
  std::size_t fallback_bytes = 0;  // of the range, from cuMemAlloc
  std::size_t retiring_bytes = 0;  // of the range, about to be unmapped: not exportable
  std::size_t missing_bytes = 0;   // of the range, with nothing behind them
  std::size_t imported = 0;        // of the mappings, pages another process made
  std::size_t aliased = 0;         // of the mappings, pages that are mapped elsewhere too
  bool cut = false;                // the range begins or ends inside a page or an allocation
  std::uint64_t generation = 0;    // of the block at the start of the range; 0 without one
  std::array<sharing_answer, sharing_count> answers;

  const sharing_answer &operator[](sharing how) const {
    return answers[static_cast<std::size_t>(how)];
  }
  // One line per way, for people. Allocates host memory: may throw std::bad_alloc.
  std::string text() const;
};

// Errors:  none. An empty range, or one that this device's ledger does not know, is refused by
//          every answer; so is any range where the host has no memory to examine it.
// Threads: safe; a consistent copy of the ledger.
// Cost:    no driver call.
// Source:  conformance 49, 54, 57, 58.
exportability_report report_exportability(const device &d, virtual_range range);

}  // namespace stillmap
