// One commit for several migrations: the tasks of a job, each sent to a destination of its own, all move, or none
// does. docs/migration_groups.md
//
// The state of a group is a file in the directory of records of one of the destinations, the group's decider.
// It only advances, and `committed` and `aborted` are final, so all that ask it learn the same outcome, whenever they
// ask, and whoever of the others lives.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "stillmap/checkpoint/base/file_system.h"
#include "stillmap/checkpoint/base/fixed_bytes.h"
#include "stillmap/checkpoint/migration/transport.h"

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

// The group that a task moves with, for send_options.
struct group_membership {
  group_id id{};  // zero: the task moves by itself
  // Reaches the decider, and outlives the sender.
  transport *decider = nullptr;
  std::string address{};  // of the decider, for the record
  // How long the task waits for the others, stopped, before it aborts the group.
  std::chrono::milliseconds timeout{60'000};
};

// Errors: the system's (no randomness).
result<group_id> make_group_id();

// Advances the state of a group in a directory of records, durably, and returns what it is then. `to` that does not
// follow the state changes nothing: `open` only reads.
// Threads and processes: safe.
// Errors:  busy (another process is reading or changing it: ask again), corrupt (the file is damaged), the system's;
//          the subject is the path. After an error of writing, the state may be either, and the next call tells.
result<group_state> advance_group(
    const std::string &records, const group_id &group, group_state to,
    checkpoint::file_system &files = checkpoint::file_system::system());

// The same at the machine that a transport leads to. `seen`: what the caller knows already; the reply is held back
// until the state is another one, for `wait` at most, and a second.
// `certificate`: what the machine must have, SHA-256 in hexadecimal; empty: any that is trusted. The one that it has is
// written to `found`, unless that is null.
// Cost:   a connection.
// Errors: what the decider refused with, not_supported (another certificate), the transport's.
result<group_state> advance_group(transport &decider, const group_id &group, group_state to,
                                  std::string_view certificate, std::chrono::milliseconds timeout,
                                  group_state seen = group_state::open,
                                  std::chrono::milliseconds wait = {},
                                  std::string *found = nullptr);

}  // namespace stillmap::migration
