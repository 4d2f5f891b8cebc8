// Durable ownership record of a task: a file that outlives processes and machines.
// docs/migration.md#ownership
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/checkpoint/image/digest.h"
#include "stillmap/vmm/physical_memory.h"

namespace stillmap::migration {

using task_id = image::fixed_bytes<16, struct task_id_tag>;
using session_id = image::fixed_bytes<16, struct session_id_tag>;

enum class ownership : std::uint8_t {
  owner,     // this machine owns the task; at a destination, receive() has not returned it yet
  running,   // this machine owns the task, and receive() has returned it
  intent,    // the task is being transferred to `peer`; the peer's record decides
  released,  // `peer` owns the task
  refused,   // an incoming transfer failed, and can never succeed under this epoch
};
const char *name_of(ownership o) noexcept;

// Parses the 32 hexadecimal digits that task_id::text() writes. Nullopt: not a task id.
std::optional<task_id> parse_task_id(std::string_view text);

struct record {
  task_id task;
  std::uint64_t epoch = 1;  // a fencing token: grows by one with every change of owner
  ownership state = ownership::owner;
  session_id session;      // of the migration that wrote the record
  std::string peer;        // the other end of that migration: its address, a space, its name
  image::digest contents;  // of the memory that was transferred; zero if none was
};

// A record as lines of text, sealed by a digest in the last line.
std::string to_text(const record &r);
// Nullopt: not a record, or damaged.
std::optional<record> parse_record(const std::string &text);

// One record of a directory, read without locking it.
struct record_info {
  task_id task;
  std::optional<record> value;   // nullopt: not written yet, or unreadable
  std::optional<error> failure;  // why it is unreadable
  bool locked = false;           // a process holds the record open
};
// Lists the records of a directory, ordered by task. A process that holds a record may change it at
// any time, and a record_file::open() at the moment of the call may fail as busy.
// Errors: the
// system's; the subject is the directory.
result<std::vector<record_info>> list_records(const std::string &directory);

// The record of one task in a directory, locked by this process while this object exists.
// Threads: externally synchronised.
class record_file {
 public:
  // Locks the record; it need not have been written yet.
  // Errors: busy (another process holds it), the system's; the subject is the path.
  static result<record_file> open(const std::string &directory, const task_id &task);
  record_file(record_file &&) noexcept = default;
  record_file &operator=(record_file &&) noexcept = default;

  // Nullopt: not written yet.
  // Errors: corrupt, the system's; the subject is the path.
  result<std::optional<record>> read() const;
  // Replaces the record durably: the file and its directory are synced.
  // Ensures: failure: the file holds the previous record or `r`, whole.
  // Errors:  the system's; the subject is the path.
  status write(const record &r);

 private:
  record_file(std::string directory, task_id task, owned_fd lock)
      : directory_(std::move(directory)), task_(task), lock_(std::move(lock)) {}
  std::string directory_;
  task_id task_;
  owned_fd lock_;
};

}  // namespace stillmap::migration
