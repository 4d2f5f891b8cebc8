// The state of a group of migrations that commit together: a file in a directory of records.
// docs/migration_groups.md
//
// It only advances, and `committed` and `aborted` are final, so all that ask for it learn the same outcome, whenever they
// ask, and whoever lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/vmm/base/error.h"

namespace stillmap::migration {

using group_id = checkpoint::fixed_bytes<16, struct group_id_tag>;

enum class group_state : std::uint8_t {
  open,       // the tasks run, and are copied
  stopping,   // all tasks can be stopped now: each stops, and records its intent
  committed,  // every task moves. Final
  aborted,    // every task stays where it is. Final
};
const char *name_of(group_state s) noexcept;

// What a task has on record of its group.
struct group_reference {
  group_id id{};  // zero: the task moves by itself
  // Of the decider: SHA-256 of its certificate, in hexadecimal, and where it was reached.
  std::string certificate{}, address{};
};

// Advances the state of a group in a directory of records, durably, and returns what it is then. `open` creates it; a
// state that does not follow changes nothing; nullopt only reads.
// Threads and processes: safe.
// Errors:  busy (nobody has created it here; or another process is reading or changing it:
//          ask again), corrupt (the file is damaged), the system's; the subject is the path. After an error of writing,
//          the state may be either, and the next call tells.
result<group_state> advance_group(
    const std::string &records, const group_id &group, std::optional<group_state> to,
    checkpoint::file_system &files = checkpoint::file_system::system());

}  // namespace stillmap::migration
