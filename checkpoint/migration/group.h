// One commit for several migrations: the tasks of a job, each sent to a destination of its own, all move, or none
// does. One of the destinations is the group's decider, which keeps its state. docs/migration_groups.md
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "stillmap/checkpoint/migration/group_state.h"
#include "stillmap/checkpoint/migration/transport.h"

namespace stillmap::migration {

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

// Advances the state of a group at the machine that a transport leads to, as group_state.h has it. `seen`: what the
// caller knows already; the reply is held back until the state is another one, for `wait` at most, and a second.
// `certificate`: what the machine must have, SHA-256 in hexadecimal; empty: any that is trusted. The one that it has is
// written to `found`, unless that is null.
// Cost:   a connection.
// Errors: what the decider refused with, not_supported (another certificate), the transport's.
result<group_state> advance_group(transport &decider, const group_id &group,
                                  std::optional<group_state> to, std::string_view certificate,
                                  std::chrono::milliseconds timeout,
                                  group_state seen = group_state::open,
                                  std::chrono::milliseconds wait = {},
                                  std::string *found = nullptr);

}  // namespace stillmap::migration
