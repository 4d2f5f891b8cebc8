// Hands memory of this process off to another process on the same machine: same addresses, same
// contents, no byte copied. docs/handoff.md has the protocol, and which process owns the memory when
// either is killed at any step.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/handoff/listener.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::handoff {

// Steps of a handoff, in order; handoff_options::on_step is called after each.
enum class step {
  greeted,          // both: the peer is allowed, and uses the same device
  layout_sent,      // sender
  pages_sent,       // sender
  ready_received,   // sender: the receiver has mapped everything
  idle,             // sender: no queued work can access the memory
  offer_sent,       // sender: the receiver may take ownership
  commit_received,  // sender: the receiver has taken ownership
  released,         // sender: unmapped here
  layout_received,  // receiver
  reserved,         // receiver: the addresses are reserved
  pages_received,   // receiver
  mapped,           // receiver
  ready_sent,       // receiver
  offer_received,   // receiver
  committed,        // receiver: the commit point; this process owns the memory
  commit_sent,      // receiver
};
const char *name_of(step s) noexcept;

struct handoff_options {
  // For each message to or from the peer, as a whole. A receiver also waits this long for the
  // sender to become idle.
  std::chrono::milliseconds timeout{10'000};
  // Whether to accept this peer. Default: its user must be ours, or root. The same rule belongs to
  // listener::accept().
  std::function<bool(const peer_credentials &)> allow;
  // Takes effect until the memory changes its owner.
  std::stop_token cancel;
  // Receiver: at the sender's addresses, or wherever there is room, for memory to which no pointer is kept.
  checkpoint::placement where = checkpoint::placement::same;
  // Sender: work on the memory may continue until the receiver has mapped it. Then `quiesce` is
  // called, after which no work may be queued any more; then the sender waits for the fence of
  // `idle` or, without it, for the device.
  std::function<status()> quiesce;
  std::function<fence()> idle;
  std::function<void(step)> on_step;
};

struct sent_memory {
  std::size_t blocks = 0;
  std::size_t places = 0;
  std::size_t pages = 0;
  std::size_t bytes = 0;  // of pages, each once
  // False: the driver did not unmap the memory here (reported to the error sink); do not access it.
  bool unmapped = true;
  peer_credentials to;
};

// Sends all memory of these tags to the process at the other end, which calls receive().
// Afterwards the addresses still belong to their owners, with no memory mapped: destroy the owners,
// or map something else.
// Requires: meanwhile no page of these tags is mapped or unmapped; after `quiesce`, no work on the
//           memory is queued.
// Ensures:  failure: this process alone owns the memory, as before.
// Errors:   invalid_argument (no memory has the tag), not_supported (a page is not exportable as a
//           file descriptor, or belongs to another process: value = its address; a device without
//           VMM), busy (memory is suspended, or also used outside of these tags: value = the
//           address; the peer did not answer in time; pages were changed), operation_canceled, an
//           error of the peer (reason `the peer refused`), corrupt (the peer does not follow the
//           protocol), the system's, the driver's.
// Threads:  safe for different memory.
// Cost:     one export a page; one unmap a contiguous run, one release a page.
result<sent_memory> send(const device &d, connection &to, std::span<const std::string> tags,
                         const handoff_options &options = {});

// Receives the memory that the process at the other end sends. Call it early in the life of the
// process: every address of the sender must be unused here, unless options.where is anywhere.
// Ensures: success: this process alone owns the memory. Failure: it has none of it.
// Errors:  busy (an address is in use: value = the address; checkpoint::find_mapping_owner() tells by
//          what; timeout; the sender revoked its offer), operation_canceled, invalid_argument (the
//          sender uses a device with another UUID), corrupt (invalid messages), an error of the
//          peer, the system's, the driver's.
// Cost:    one reserve a block, one import and one map a page, one set-access a contiguous run.
result<checkpoint::restored_memory> receive(const device &d, connection &from,
                                            const handoff_options &options = {});

}  // namespace stillmap::handoff
