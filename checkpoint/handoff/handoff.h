// Memory of one process becomes memory of another on the same machine: same addresses, same
// contents, no byte copied. docs/handoff.md has the protocol, and who owns the memory when either
// side dies at any step.
#pragma once

#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/handoff/connection.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::handoff {

// Where a side is; told to handoff_options::at when it has got there.
enum class step {
  greeted,          // both: the other side is who it should be
  layout_sent,      // giver
  pages_sent,       // giver
  told_ready,       // giver: the taker has all it needs
  quiet,            // giver: nothing runs on the memory any more
  offered,          // giver: the taker may take it
  told_taken,       // giver: it has
  given,            // giver: unmapped here
  layout_received,  // taker
  reserved,         // taker: the addresses are its own
  pages_received,   // taker
  mapped,           // taker
  ready,            // taker: has said so
  offer_received,   // taker
  taken,            // taker: the commit point
  done,             // taker: has said so
};
const char *name_of(step s) noexcept;

struct handoff_options {
  // How long the other side may be silent. Waiting for a giver to become quiet counts.
  patience wait{10'000};
  // Whether to deal with this process. Without: its user must be ours.
  std::function<bool(const peer &)> allow;
  std::stop_token cancel;  // heard until the memory is taken
  // Giver: work on the memory may go on until the taker is ready. Then this is called, which must
  // queue nothing more, and then `idle` or, without one, all of the device is waited for.
  std::function<status()> quiesce;
  std::function<fence()> idle;
  std::function<void(step)> at;
};

struct given_memory {
  std::size_t blocks = 0;
  std::size_t places = 0;
  std::size_t pages = 0;
  std::size_t bytes = 0;  // of pages, each once
  bool unmapped = true;   // false: the driver would not (reported to the error sink); do not touch
  peer to;
};

// Gives all memory of these tags to the process at the other end, which calls take().
// Afterwards its addresses are still their owners' but nothing is behind them (as suspended,
// without a way back): destroy the owners, or use them for something else.
// Ensures:  failure: the memory is this process's as before, and only this process's.
// Requires: meanwhile nobody changes the pages of these tags, and after `quiesce` nobody uses them.
// Errors:   invalid_argument (nothing has the tag), not_supported (a page is not exportable as a
//           file descriptor or is another process's: value = its address; a device without VMM),
//           busy (suspended, or used outside of these tags: value = the address; the other side
//           was silent; cancelled; the pages changed), what the other side refused (reason "the
//           other side refuses"), corrupt (it is no taker of ours), the system's, the driver's.
// Threads:  safe for different memory.
// Cost:     one export a page; one unmap a contiguous run, one release a page.
result<given_memory> give(const device &d, connection &to, const std::vector<std::string> &tags,
                          const handoff_options &how = {});

// Takes what the process at the other end gives. Reserve early: an address that is in use here is a
// refusal (busy, value = the address; checkpoint::find_mapping_owner says by whom).
// Ensures: success: this process owns the memory, and nobody else. Failure: it has none of it.
// Errors:  busy (an address is taken; silence; cancelled; the giver revoked), invalid_argument
//          (another device: its UUID differs), corrupt (messages that make no sense), the other
//          side's refusal, the system's, the driver's.
// Cost:    one reserve a block, one import and one map a page, one set-access a contiguous run.
result<checkpoint::restored_memory> take(const device &d, connection &from,
                                       const handoff_options &how = {});

}  // namespace stillmap::handoff
