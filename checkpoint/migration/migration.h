// A running task's memory moves to another machine: same addresses, same contents, a short pause.
// docs/migration.md has the protocol, and who owns the task when anything dies at any step.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::migration {

// Where a side is.
enum class step {
  described,         // source: knows what is to go
  greeted,           // source: the destination is who it should be
  prepared,          // source: the destination has the addresses
  joined,            // source: all channels are open
  copied,            // source: a round is over (more than once)
  quiet,             // source: the task has stopped
  sealed,            // source: all has gone over, and what it should be
  verified,          // source: and is that
  intent,            // source: on record that it gives the task away
  committed,         // source: has said so
  told_owner,        // source: the destination owns it
  released,          // source: nothing is left here
  accepted,          // destination: the source is who it should be
  reserved,          // destination: has the addresses, and begins to make pages
  round_landed,      // destination: a round is there (more than once)
  sealed_here,       // destination: knows what it should be
  waiting,           // destination: it is that; and nobody but the source decides
  commit_received,   // destination
  owner_recorded,    // destination: on record that it owns: the commit point
  said_owner,        // destination
  running_recorded,  // destination: on record that the task may run here
};
const char *name_of(step s) noexcept;

struct progress {
  step at = step::described;
  std::size_t round = 0;    // of copying, from 1; 0: not yet
  std::uint64_t bytes = 0;  // of memory
  std::uint64_t sent = 0;   // bytes of contents so far, again and again counted
  // Of this round. From the second on, round_bytes grows while the rest is looked at.
  std::uint64_t round_sent = 0, round_bytes = 0;
  double bytes_per_second = 0;  // over the link
  double expected_pause = 0;    // seconds, if it stopped now; 0: nobody knows yet
};

// What to do with a task that writes faster than it can be copied, once throttle() is of no use.
enum class when_it_does_not_converge {
  stop_and_copy,  // a longer pause
  give_up,        // it goes on here
};

struct send_options {
  std::string records;       // a folder for the record of ownership, on a disk that outlives us
  task_id task;              // zero: a new random one
  std::size_t channels = 2;  // connections for data, 1 to 64
  std::uint32_t chunk_bytes = 512 << 10;  // what is compared and sent: 64 KiB to a page, 2^n
  std::chrono::milliseconds pause{100};   // the longest that is wanted
  std::size_t most_rounds = 30;
  when_it_does_not_converge otherwise = when_it_does_not_converge::stop_and_copy;
  std::uint64_t bytes_per_second = 0;  // of the link, at most; 0: as fast as it goes
  patience wait{10'000};               // how long the other side may be silent
  // After the intent is on record, with the link cut: how long the destination is asked what it
  // made of it, before the answer is `undecided`.
  patience settle{60'000};

  // Brings the task to a stop: nothing may be queued afterwards. Then `idle`, or without one all of
  // the device, is waited for. go_on: it stays here after all.
  std::function<status()> quiesce;
  std::function<fence()> idle;
  std::function<void()> go_on;
  // Asks the task to write less, by that part of its speed (0: as it likes; below 1).
  std::function<void(double)> throttle;
  std::stop_token abort;                     // heard until the intent is on record
  std::function<void(const progress &)> at;  // at every step, and a few times a second
};

enum class whose {
  source,       // it is here as before, and `why` says why
  destination,  // it has moved: nothing is behind the addresses here any more
  undecided,    // the intent is on record and the destination cannot be reached: it stays stopped
                // here until settle() has heard what became of it
};

struct sent_memory {
  migration::whose whose = whose::source;
  std::optional<error> why;
  task_id task;
  std::uint64_t epoch = 0;  // the owner's
  peer to;
  std::size_t rounds = 0;         // with the last one, in which the task stood still
  std::uint64_t bytes = 0;        // of memory
  std::uint64_t bytes_sent = 0;   // of contents
  std::uint64_t zero_bytes = 0;   // not sent, being zeros
  std::uint64_t clean_bytes = 0;  // not sent again, being the same: over all rounds but the first
  std::uint64_t resent = 0;       // chunks that did not arrive as they left
  double pause = 0, seconds = 0;
  bool unmapped = true;  // moved, and false: the driver would not; do not touch it
};

// Sends all memory of some tags, with nobody else using its addresses there.
// Threads: one calls send() and settle(); now() from any.
class sender {
 public:
  sender(const device &d, std::vector<std::string> tags, send_options how);
  sender(sender &&) noexcept;
  sender &operator=(sender &&) = delete;
  ~sender();

  // While it copies, the task goes on, and may grow and shrink; from quiesce() on it stands still.
  // Ensures:  exactly what the result says. `source`: the memory is as before and go_on() was
  //           called, if quiesce() was.
  // why:      invalid_argument (nothing has the tag, options: value, limit), not_supported (memory
  //           of other devices or processes, suspended memory; the certificates), busy (the record
  //           is another's, aborted, does not converge, the other side is silent or refuses: an
  //           address is taken there, a newer epoch), corrupt (messages that make no sense), the
  //           system's, the driver's.
  // Memory:   two chunks a channel, pinned, and 16 bytes a chunk.
  // Cost:     a copy for each chunk that is sent, and a few launches for each look at what has
  //           changed.
  sent_memory send(transport &to);
  // After `undecided`: asks again. Also in another process than the one that is gone, which has
  // nothing to give any more: tags empty, the task that is on record.
  sent_memory settle(transport &to);

  progress now() const;

 private:
  class core;
  std::unique_ptr<core> core_;
};

struct receive_options {
  std::string records;  // as send_options
  patience wait{10'000};
  patience settle{
      60'000};  // with all here and the link cut: how long the source's word is waited for
  std::uint64_t most_bytes = 0;  // of a task's memory; 0: what the device has
  std::size_t most_tasks = 0;    // one after the other, then no more; 0: any number
  // Reads back what has landed, by digests that the device makes. Without: what arrives is checked.
  bool read_back = true;
  std::function<bool(const peer &)> allow;  // whether to take from them
  std::function<void(step)> at;
};

struct arrived_memory {
  checkpoint::restored_memory memory;
  task_id task;
  std::uint64_t epoch = 0;
  peer from;
  // Keeps others from the record as long as the task is here. Give it up before sending it on.
  record_file record;
};

// Is found by senders, and answers those who ask what became of a task. Owner of its threads.
// Threads: safe.
class receiver {
 public:
  // Errors: invalid_argument (no folder for records), the system's.
  static result<receiver> start(const device &d, std::unique_ptr<acceptor> at, receive_options how);
  receiver(receiver &&) noexcept;
  receiver &operator=(receiver &&) = delete;
  // Whoever is on the way here stays where it is.
  ~receiver();

  std::string where() const;
  // The next task that has come here, when it is on record that it is here.
  // Errors: busy (none within `wait`; cancelled), the system's (the record).
  result<arrived_memory> receive(patience wait, std::stop_token cancel = {});
  // Why the last one that was on its way did not come; nothing: none, or it still may.
  std::optional<error> last_failure() const;

 private:
  class core;
  explicit receiver(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::migration
