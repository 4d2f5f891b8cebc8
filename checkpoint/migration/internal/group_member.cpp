#include "stillmap/checkpoint/migration/internal/group_member.h"

#include <thread>

#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {
namespace {

tl::unexpected<error> group_aborted() {
  return make_error(errc::operation_canceled,
                    "the group was aborted: another of its tasks cannot move");
}

// The decider holds a reply back for so long. Between two, a task that runs is copied again, and one that is stopped
// looks whether its destination lives.
constexpr std::chrono::milliseconds held_back{200};
constexpr std::chrono::milliseconds between_attempts{50};
// Where many tasks join at one moment, the decider closes some of the connections.
constexpr int attempts_to_join = 5;

}  // namespace

status group_member::join() {
  if (to_.decider == nullptr) {
    return make_error(errc::invalid_argument, "the group has no decider to ask");
  }
  of_ = {to_.id, {}, to_.address};
  const auto read = [this] {
    return advance_group(*to_.decider, of_.id, {}, {}, timeout_, group_state::open, {},
                         &of_.certificate);
  };
  auto seen = read();
  for (int i = 1; i < attempts_to_join && !seen; ++i) {
    pause();
    seen = read();
  }
  if (!seen) return tl::unexpected(seen.error());
  const group_state now = *seen;
  if (now == group_state::open) return {};
  if (now == group_state::aborted) return group_aborted();
  const auto e = make_error(errc::busy, "the group takes no further task: begin a new one");
  return tl::unexpected(e.value().with({.found = name_of(now)}));
}

result<group_state> group_member::advance(std::optional<group_state> to, group_state seen) {
  return advance_group(*to_.decider, of_.id, to, of_.certificate, timeout_, seen, held_back);
}

result<group_state> group_member::ask(std::optional<group_state> to) {
  return advance_group(*to_.decider, of_.id, to, of_.certificate, timeout_);
}

result<bool> group_member::may_stop() {
  const auto now = advance({}, group_state::open);
  if (!now) {
    if (!failing_since_) failing_since_ = clock::now();
    if (clock::now() - *failing_since_ > timeout_) return tl::unexpected(now.error());
    pause();
    return false;
  }
  failing_since_.reset();
  if (*now == group_state::aborted) {
    return group_aborted();
  }
  return *now != group_state::open;
}

void group_member::abort() noexcept {
  report_if_failed([this]() -> status {
    STILLMAP_RETURN_IF_ERROR(ask(group_state::aborted));
    return {};
  }());
}

void group_member::pause() {
  std::this_thread::sleep_for(between_attempts);
}

}  // namespace stillmap::migration
