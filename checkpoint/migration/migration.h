// Live migration: moves the device memory of a running task to a process on another machine, at the
// same addresses, with a downtime much shorter than the copy. docs/migration.md says
// which end owns the task after either end or the network fails at any step;
// docs/migration_protocol.md has the protocol.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/migration/group.h"
#include "stillmap/checkpoint/migration/record.h"
#include "stillmap/checkpoint/migration/transport.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::migration {

// The last step that an end of a migration has completed.
enum class step {
  // Source.
  described,            // the layout of the task's memory is known
  connected,            // the destination is authenticated
  prepared,             // the destination has reserved the addresses
  channels_open,        // all data channels are open
  copied,               // one round of copying is complete; repeats
  ready,                // of a group only: the task could be stopped now, and waits for the others
  quiesced,             // the task has stopped
  sealed,               // all contents and their digests are sent
  verified,             // the destination's contents match the digests
  intent_recorded,      // the transfer is on record: the destination's record decides from here on
  group_committed,      // of a group only: all its tasks move
  commit_sent,          // the commit message is sent
  ownership_confirmed,  // the destination owns the task
  released,             // the memory is unmapped at the source
  // Destination.
  accepted,            // the source is authenticated
  reserved,            // the addresses are reserved, pages are being created
  round_received,      // one round of copying has arrived; repeats
  seal_received,       // the digests have arrived
  awaiting_commit,     // the contents match; only the source can decide now
  commit_received,     // the commit message has arrived
  ownership_recorded,  // ownership is on record: the commit point
  ownership_sent,      // the confirmation is sent
  running_recorded,    // the record says that the task may run
};
const char *name_of(step s) noexcept;

struct progress {
  migration::step step = step::described;
  std::size_t round = 0;         // of copying, from 1; 0: none has begun
  std::uint64_t bytes = 0;       // of the task's memory
  std::uint64_t bytes_sent = 0;  // contents so far; contents that are sent again count again
  // Of this round. From the second round on, round_bytes grows while changed chunks are found.
  std::uint64_t round_sent = 0, round_bytes = 0;
  double bytes_per_second = 0;  // measured throughput
  // Estimated downtime if the task were stopped now; 0: not known yet.
  std::chrono::duration<double> expected_downtime{0};
  // The part of it in which all memory is scanned for changes, which no further round shortens.
  std::chrono::duration<double> expected_scan{0};
  // No further round is made: quiesce() is called next. Reported before the task is stopped, so that
  // expected_downtime can be compared with max_downtime while the migration can still be cancelled.
  bool stopping = false;
};

// What a sender does about a task that writes faster than it can be copied, once throttle() has
// not helped.
enum class no_convergence {
  stop_and_copy,  // stops the task and accepts a longer downtime
  cancel,         // cancels the migration; the task continues at the source
};

struct send_options {
  // A directory for the ownership record, on storage that survives this process and machine.
  std::string records;
  // Zero: a new random id.
  task_id task{};
  // Data connections, 1 to 64.
  std::size_t channels = 2;
  // The unit of comparison and transfer: a power of two from 64 KiB to the page size.
  std::uint32_t chunk_bytes = 512 << 10;
  // The downtime that the sender aims for. Memory that takes longer to scan for changes cannot be
  // moved in it: with no_convergence::cancel the migration then fails before the task is stopped, with
  // stop_and_copy progress::expected_downtime says how long it will take.
  std::chrono::milliseconds max_downtime{100};
  std::size_t max_rounds = 30;
  no_convergence on_no_convergence = no_convergence::stop_and_copy;
  // Limits the bandwidth; 0: unlimited.
  std::uint64_t bytes_per_second = 0;
  // How long the destination may be silent.
  std::chrono::milliseconds timeout{10'000};
  // If the connection is lost after the intent is on record: how long the destination is asked for
  // the outcome before the result is `in_doubt`.
  std::chrono::milliseconds resolve_timeout{60'000};

  // Stops the task: queues nothing more once it has returned. Then `idle` is waited for, or the
  // whole device if there is none.
  std::function<status()> quiesce{};
  std::function<fence()> idle{};
  // Lets the task continue after a failed migration. Called only after quiesce().
  std::function<void()> resume{};
  // Asks the task to write less, by this fraction of its speed: 0 (full speed) to below 1.
  std::function<void(double)> throttle{};
  // Cancels the migration; observed until the intent is on record, and of a group until that is decided.
  std::stop_token cancel{};
  // Called at every step, and a few times a second while copying.
  std::function<void(const progress &)> on_progress{};
  // resolve(): the destination's certificate has been replaced since the task was sent to it.
  // Otherwise only the same certificate's answer decides.
  bool certificate_replaced = false;
  // Moves the task only if all tasks of the group move. It is stopped once the group is `stopping`, and its intent lets
  // the group decide. resolve() needs it, too, if the record names a group.
  group_membership group{};
  // Of the record. Its lock is the system's.
  checkpoint::file_system *files = &checkpoint::file_system::system();
  // Carries the data channels where the destination announces a data acceptor of this transport, and the first data
  // channel to it opens: each step of that takes 10 s at most. Otherwise, and where null, they use the transport of
  // the control channel: see sent_memory::data_transport. It need not be secret nor authenticated: docs/ucx.md.
  std::shared_ptr<migration::data_connector> data_connector{};
};

enum class owner {
  source,       // the memory is unchanged here; `failure` says why
  destination,  // the memory has moved: nothing is mapped at its addresses here
  in_doubt,  // the intent is on record, and the destination, or the group's decider, is unreachable: the
  // task stays stopped until resolve() has learned the outcome. Or its group has moved without
  // it, and its memory is here: resolve() sends it again
};

struct sent_memory {
  migration::owner owner = owner::source;
  std::optional<error> failure{};  // empty exactly if the destination is the owner
  task_id task{};
  std::uint64_t epoch = 0;  // of the owner
  peer_identity to{};
  std::size_t rounds = 0;             // including the last, with the task stopped
  std::uint64_t bytes = 0;            // of memory
  std::uint64_t bytes_sent = 0;       // of contents
  std::uint64_t zero_bytes = 0;       // not sent: all zeros
  std::uint64_t unchanged_bytes = 0;  // not sent again; summed over all rounds but the first
  std::uint64_t resent_chunks = 0;    // chunks that arrived damaged
  std::chrono::duration<double> downtime{0}, elapsed{0};
  // Of the data channels: the data_connector's name. Empty: they used the transport of the control channel.
  std::string data_transport{};
  // Why they did not use another one, where this end has a data_connector or the destination announces an acceptor:
  // not_supported (one end has none, or of another transport), what opening the first channel failed with.
  std::optional<error> data_fallback{};
  // False: the driver failed to unmap memory that has moved (a background error); do not use it.
  bool unmapped = true;
};

// Source of a migration: sends all memory of some tags to a destination where its addresses are
// free.
// Threads: one thread calls send() and resolve(); any calls now().
class sender {
 public:
  sender(const device &d, std::span<const std::string> tags, send_options options);
  sender(sender &&) noexcept;
  sender &operator=(sender &&) = delete;
  ~sender();

  // Migrates. The task keeps running while its memory is copied, and may grow and shrink it; it
  // stands still from quiesce() on.
  // Requires: `to` outlives this object, which keeps its connections while it is in doubt.
  // Ensures: exactly what sent_memory::owner says. `source`: the memory is unchanged, and if
  //          quiesce() was called, so was resume().
  // Errors:  in sent_memory::failure: invalid_argument (no memory has the tag; options),
  //          not_supported (memory of other devices or processes, suspended memory; rejected
  //          certificates), operation_canceled, busy (another process holds the record; no
  //          convergence, or max_downtime is shorter than a scan: value and limit in ms; the destination is silent, or refused because an address is in use there
  //          or its record has a newer epoch), corrupt (malformed messages), the system's, the
  //          driver's.
  // Memory:  two pinned chunks per channel, and 16 bytes per chunk of the task's memory.
  // Cost:    one copy per chunk that is sent, and a few kernel launches per scan for changes.
  sent_memory send(transport &to);
  // After `in_doubt`: asks the destination for the outcome. Also works in another process after the
  // sending one has died: with no tags, and the id of the task on record.
  sent_memory resolve(transport &to);

  progress now() const;

 private:
  class core;
  std::unique_ptr<core> core_;
};

struct receive_options {
  // As send_options::records.
  std::string records;
  // How long the source may be silent within a message.
  std::chrono::milliseconds timeout{10'000};
  // With all contents received and the connection lost: how long the source's decision is awaited.
  std::chrono::milliseconds resolve_timeout{60'000};
  // The largest task that is accepted; 0: what the device has.
  std::uint64_t max_bytes = 0;
  // Tasks to accept, one after the other; 0: any number.
  std::size_t max_tasks = 0;
  // Verifies contents in device memory, by digests that the device computes. Without, contents are
  // verified as they arrive.
  bool read_back = true;
  // Whether to accept tasks from this peer. Empty: from every authenticated peer.
  std::function<bool(const peer_identity &)> allow{};
  // Called after each step, without a lock: by the thread of a connection, for `running_recorded` by
  // the one in receive(). Must not throw.
  std::function<void(step)> on_step{};
  // Of records. Their locks are the system's.
  checkpoint::file_system *files = &checkpoint::file_system::system();
  // Accepts data channels, and nothing else: a connection to here that begins with another message than
  // `join`, under the id of the session, is refused. Each source is told its address. Data channels may still come
  // to the acceptor of control channels. Null: only there.
  std::shared_ptr<migration::data_acceptor> data_acceptor{};
};

struct received_memory {
  checkpoint::restored_memory memory;
  task_id task;
  std::uint64_t epoch = 0;
  peer_identity from;
  // Locks the ownership record while the task is here. Release it before sending the task on.
  record_file record;
};

// Destination of migrations: accepts tasks, one at a time, and answers sources that ask for the
// outcome of a migration. Owns its threads.
// Threads: safe.
class receiver {
 public:
  // Errors: invalid_argument (no directory for records; a data acceptor whose name or address cannot be announced), the system's (the directory cannot be read
  //         and written; the subject is its path).
  static result<receiver> create(const device &d, std::unique_ptr<acceptor> at,
                                 receive_options options);
  receiver(receiver &&) noexcept;
  receiver &operator=(receiver &&) = delete;
  // Cancels a migration that has not committed; its source keeps the task. A task that has arrived, and
  // that receive() has not returned, is lost: see close().
  ~receiver();

  // The address that sources connect to.
  std::string address() const;
  // Returns the next task that has arrived, after recording that it runs here.
  // Errors: busy (none arrived within `timeout`), operation_canceled, the system's (the record).
  result<received_memory> receive(std::chrono::milliseconds timeout, std::stop_token cancel = {});
  // Accepts no further task, and cancels a migration that has not committed. Waits for the commit of one
  // that is just being decided: afterwards, receive() returns each task that has arrived and whose
  // source has given it up. Sources are still told the outcome.
  void close();
  // Why the last migration to here failed. Nullopt: none has, or one is under way.
  std::optional<error> last_failure() const;

 private:
  class core;
  explicit receiver(std::unique_ptr<core> c);
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::migration
