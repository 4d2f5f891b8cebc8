// The group that a task moves with, as the task's source sees it. docs/migration_groups.md
#pragma once

#include <chrono>
#include <optional>
#include <stop_token>

#include "stillmap/checkpoint/migration/group.h"

namespace stillmap::migration {

// Threads: externally synchronised.
class group_member {
 public:
  // `timeout`: how long the decider may be silent. `of`: what is on record of the group; its certificate is not known
  // before join().
  group_member(const group_membership &to, group_reference of, std::chrono::milliseconds timeout)
      : to_(to), of_(std::move(of)), timeout_(timeout) {}

  // Errors: busy (the group has been decided, or its tasks are being stopped), invalid_argument (no decider), those of
  //         advance_group().
  status join();
  const group_reference &reference() const { return of_; }

  // Waits for a moment. False: the group is open still.
  // Errors: operation_canceled (the group was aborted); those of advance_group(), once it has failed for the timeout.
  result<bool> may_stop();

  // Asks once.
  // Errors: those of advance_group().
  result<group_state> ask(std::optional<group_state> to = {});
  // Waits for `committed` or `aborted`, for group_membership::timeout: then, or once `cancel` is requested or `is_lost`
  // says so, aborts the group, if that is possible still.
  // Errors: those of advance_group(), once it has failed for that time.
  template <class Lost>
  result<group_state> await_decision(const std::stop_token &cancel, const Lost &is_lost) {
    const auto until = clock::now() + to_.timeout;
    group_state seen = group_state::stopping;
    for (;;) {
      const bool gives_up = cancel.stop_requested() || clock::now() >= until || is_lost();
      auto now = advance(gives_up ? std::optional(group_state::aborted) : std::nullopt, seen);
      if (now && (*now == group_state::committed || *now == group_state::aborted)) return now;
      if (now) seen = *now;
      if (!now && clock::now() >= until) return now;
      if (!now) pause();
    }
  }
  // Best effort: the others need not wait for this task.
  void abort() noexcept;

 private:
  using clock = std::chrono::steady_clock;
  result<group_state> advance(std::optional<group_state> to, group_state seen);
  static void pause();

  const group_membership &to_;
  group_reference of_;
  const std::chrono::milliseconds timeout_;
  std::optional<clock::time_point> failing_since_;
};

}  // namespace stillmap::migration
