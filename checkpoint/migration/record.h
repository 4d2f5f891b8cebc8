// Durable ownership record of a task: a file that outlives processes and machines.
// docs/migration_protocol.md#ownership
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/checkpoint/migration/group_state.h"

namespace stillmap::migration {

class record_lock;

using task_id = checkpoint::fixed_bytes<16, struct task_id_tag>;
using session_id = checkpoint::fixed_bytes<16, struct session_id_tag>;

enum class ownership : std::uint8_t {
  owner,     // this machine owns the task; at a destination, receive() has not returned it yet
  running,   // this machine owns the task, and receive() has returned it
  intent,    // the task is being transferred to `peer`; the peer's record decides
  released,  // `peer` owns the task
  none,      // this machine has never owned the task: `peer` offered it
};
const char *name_of(ownership o) noexcept;

// How far a transfer to this machine has got.
enum class transfer_state : std::uint8_t {
  offered,    // the source may commit it, as long as the process that receives it lives
  committed,  // this machine became the owner
  refused,    // it has failed, and can never be committed
};
const char *name_of(transfer_state s) noexcept;

struct incoming_transfer {
  session_id session;
  std::uint64_t epoch = 0;  // of this machine, once the transfer is committed
  transfer_state state = transfer_state::offered;
};

// Parses the 32 hexadecimal digits that task_id::text() writes. Nullopt: not a task id.
std::optional<task_id> parse_task_id(std::string_view text);

struct record {
  task_id task;
  std::uint64_t epoch = 1;  // a fencing token: grows by one with every change of owner
  ownership state = ownership::owner;
  session_id session;      // of the migration that wrote the record
  std::string peer;        // the other end of that migration: its address, a space, its name
  image::digest contents;  // of the memory that was transferred; zero if none was
  // Of `intent`: SHA-256 of the certificate of the machine that the task was sent to, in
  // hexadecimal. No other machine's answer decides.
  std::string certificate{};
  // Of `intent`: the group that decides whether the task moves. Of `owner`: the group has moved without this task, which
  // must not run here: it can only be sent again.
  group_reference group{};
  // Transfers to this machine, the oldest first, at most max_transfers. A source that asks for the
  // outcome of a transfer that is not among them gets no outcome.
  std::vector<incoming_transfer> transfers{};
  static constexpr std::size_t max_transfers = 16;

  // The transfer of a session. Null: unknown.
  const incoming_transfer *find(const session_id &session) const;
  // Whether receive() has not returned the task of this transfer, which is committed: while the
  // process that received it lives, it may still do so.
  bool undelivered(const incoming_transfer &t) const {
    return state == ownership::owner && t.session == this->session &&
           t.state == transfer_state::committed;
  }
  // Adds a transfer, or changes its state. An offer replaces an earlier one under the same epoch:
  // a source offers again only what it has not committed. Makes room by forgetting the oldest
  // transfer, of those that were not committed if there are any.
  void set_transfer(const session_id &session, std::uint64_t epoch, transfer_state state);
  // Records that the transfer can never be committed. A task that it has brought, and that
  // receive() has not returned, is not here.
  // Requires: nothing can commit or return it: the process that received it has ended, or this is it.
  void refuse(const session_id &session, std::uint64_t epoch);
};

// A record as lines of text, sealed by a digest in the last line.
std::string to_text(const record &r);
// Nullopt: not a record of this version, or damaged.
std::optional<record> parse_record(const std::string &text);

// Reads a record without locking it. What it says of a transfer that has been refused, or whose task
// has been returned by receive(), stays true. Nullopt: not written yet.
// Errors: as record_file::read().
result<std::optional<record>> read_record(
    const std::string &directory, const task_id &task,
    checkpoint::file_system &files = checkpoint::file_system::system());

// One record of a directory, read without locking it.
struct record_info {
  task_id task;
  std::optional<record> value;   // nullopt: not written yet, or unreadable
  std::optional<error> failure;  // why it is unreadable
  bool locked = false;           // a process holds the record open
};
// Lists the records of a directory, ordered by task. A process that holds a record may change it at
// any time, and a record_file::open() at the moment of the call may fail as busy.
// Errors: the system's; the subject is the directory.
result<std::vector<record_info>> list_records(
    const std::string &directory,
    checkpoint::file_system &files = checkpoint::file_system::system());

// The record of one task in a directory, locked by this process while this object exists: by the
// file TASK.lock beside it, which must not be deleted.
// Threads: externally synchronised.
// Fork:    the child has no lock, so it does not keep the record locked once this process has died;
//          write() fails there with not_supported.
class record_file {
 public:
  // Locks the record; it need not have been written yet. Writes the record of an earlier
  // keep_locked() in this process first.
  // Errors: busy (another process holds it), the system's; the subject is the path.
  static result<record_file> open(
      const std::string &directory, const task_id &task,
      checkpoint::file_system &files = checkpoint::file_system::system());
  record_file(record_file &&) noexcept;
  record_file &operator=(record_file &&) noexcept;
  ~record_file();

  // Nullopt: not written yet.
  // Errors: corrupt, the system's; the subject is the path.
  result<std::optional<record>> read() const;
  // Confirms that no other process can have changed the record since it was last read or written
  // here. If the lock file was deleted, takes the lock again, if the record is still the same.
  // Errors: busy (the lock file was deleted, and another process holds or has changed the record:
  //         what this one knows of it no longer counts), not_supported (in a forked child), the
  //         system's; the subject is the path.
  status confirm();
  // Replaces the record durably, after confirm(): the file and its directory are synced.
  // Ensures: failure: the file holds the previous record, or, if the system cannot undo the
  //          change, `r`; whole in both cases.
  // Errors:  as confirm(); busy (the lock file was deleted meanwhile), the system's.
  status write(const record &r);

  // Where write() has failed, and the file may say that the task is not here though it is: keeps
  // the record locked until open() in this process can write `truth`, or until the process ends.
  // Until then no other process can act on what the file says.
  static void keep_locked(record_file file, record truth) noexcept;

 private:
  record_file(std::string directory, const task_id &task, checkpoint::file_system &files,
              std::unique_ptr<record_lock> lock) noexcept;
  bool is_locked() const noexcept;
  tl::unexpected<error> lost() const;
  static std::optional<record_file> take_kept(const std::string &directory, const task_id &task,
                                              record &truth);
  std::string directory_;
  task_id task_;
  checkpoint::file_system *files_;
  std::unique_ptr<record_lock> lock_;
  // The text that was last read or written; empty: none. Nullopt: it is not known.
  mutable std::optional<std::string> last_;
};

}  // namespace stillmap::migration
