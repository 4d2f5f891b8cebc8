// Whose a task is, on disk, where it outlives processes and machines. docs/migration.md#records
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
  owner,     // it is here. At a destination: and has not been told to anybody here yet
  running,   // it came here, and was told so
  intent,    // it is being given to `peer`, whose record decides
  released,  // `peer` has it
  refused,   // it was coming here and never will, under this epoch
};
const char *name_of(ownership o) noexcept;

// From 32 hexadecimal digits, as text() writes them; nothing: it is something else.
std::optional<task_id> task_id_of(std::string_view text);

struct record {
  task_id task;
  std::uint64_t epoch = 1;  // how often it has changed hands: a fencing token
  ownership state = ownership::owner;
  session_id session;      // of the migration that it is about
  std::string peer;        // the other side
  image::digest contents;  // of what went over, where it did
};

// Lines for people; the last one is the digest of those before. Empty: they are no record.
std::string text_of(const record &r);
std::optional<record> record_of(const std::string &text);

// One of a folder's tasks, as somebody sees it who does not take its record.
struct record_seen {
  task_id task;
  std::optional<record> what;    // empty: there is none yet, or
  std::optional<error> trouble;  // it cannot be read
  bool held = false;             // a process has it
};
// All of a folder, by number. Whoever has one may change it at once; who takes one at the very
// moment that it is looked at may be told that it is another's. Errors: the system's.
result<std::vector<record_seen>> records_in(const std::string &folder);

// The record of one task in a folder, of this process alone as long as it is there.
// Threads: externally synchronised.
class record_file {
 public:
  // Takes it, or what there will be of it. Errors: busy (another process has it), the system's.
  static result<record_file> open(const std::string &folder, const task_id &task);
  record_file(record_file &&) noexcept = default;
  record_file &operator=(record_file &&) noexcept = default;

  // Empty: there is none. Errors: corrupt, the system's.
  result<std::optional<record>> read() const;
  // Ensures: success: it is there after the machine stops, too; failure: the one before is, or this
  //          one. Errors: the system's.
  status write(const record &r);

 private:
  record_file(std::string folder, task_id task, owned_fd lock)
      : folder_(std::move(folder)), task_(task), lock_(std::move(lock)) {}
  std::string folder_;
  task_id task_;
  owned_fd lock_;
};

}  // namespace stillmap::migration
