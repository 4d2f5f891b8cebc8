#include "tools/stillmap/task/migrate_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

using clock = std::chrono::steady_clock;
using migration::group_state;
using migration::step;

constexpr std::size_t max_group_tasks = 64;
constexpr std::chrono::milliseconds resolve_interval{200};

// From one port to another, both included. False: neither a port nor a range of ports.
bool parse_ports(const std::string &text, unsigned &first, unsigned &last) {
  const std::size_t dash = text.find('-');
  const auto number = [](const std::string &digits, unsigned &into) {
    const char *const end = digits.data() + digits.size();
    return is_number(digits) && std::from_chars(digits.data(), end, into).ec == std::errc() &&
           into >= 1 && into <= 65535;
  };
  if (!number(text.substr(0, dash), first)) return false;
  last = first;
  return dash == std::string::npos ||
         (number(text.substr(dash + 1), last) && last >= first && last - first < max_group_tasks);
}

class group_run {
 public:
  group_run(const std::vector<group_task> &tasks, migration::transport &decider,
            const migration::group_id &id, std::chrono::milliseconds within, bool silent)
      : tasks_(tasks), decider_(decider), id_(id), within_(within), silent_(silent) {
    for (const group_task &t : tasks) {
      members_.push_back({t.socket, make_error(errc::busy, "it has not answered"), {}});
    }
  }

  moved_group run() {
    {
      std::vector<std::jthread> threads;
      if (start(threads)) {
        decide();
      } else {
        abort();
      }
      give_up_later();
    }
    moved_group out;
    out.may_have_moved = commit_asked_ && state_ != group_state::aborted;
    for (member &m : members_) out.tasks.push_back({m.socket, std::move(m.sent), m.answered});
    return out;
  }

 private:
  struct member {
    std::string socket;
    result<migration::sent_memory> sent;
    std::optional<step> reached;
    bool asked = false, ended = false, answered = false;
  };

  // Whether each task has a thread that asks it.
  bool start(std::vector<std::jthread> &threads) {
    try {
      for (std::size_t i = 0; i < tasks_.size(); ++i) {
        threads.emplace_back([this, i] { ask(i); });
        members_[i].asked = true;
      }
      return true;
    } catch (const std::system_error &) {
    } catch (const std::bad_alloc &) {
    }
    return false;
  }

  void ask(std::size_t i) {
    auto sent = with_host_memory([&] { return migrate(i); });
    const std::lock_guard lock(mutex_);
    members_[i].answered = sent || !given_up_.stop_requested();
    members_[i].sent = std::move(sent);
    members_[i].ended = true;
    changed_.notify_all();
  }

  result<migration::sent_memory> migrate(std::size_t i) {
    control::client_options options;
    options.cancel = given_up_.get_token();
    const control::client client(tasks_[i].socket, options);
    control::migrate_request r = tasks_[i].request;
    r.group = id_;
    auto sent = client.migrate(r, [&](const migration::progress &p) {
      const std::lock_guard lock(mutex_);
      // Between, a task that waits for the others is copied again.
      members_[i].reached = std::max(members_[i].reached.value_or(p.step), p.step);
      changed_.notify_all();
    });
    // One in doubt asks again, and one that the group has left behind is sent again.
    while (sent && sent->owner == migration::owner::in_doubt && !given_up_.stop_requested()) {
      std::this_thread::sleep_for(resolve_interval);
      auto settled = client.resolve();
      if (!settled && settled.error().code == std::errc::invalid_argument) break;  // another did
      if (settled) sent = std::move(settled);
    }
    return sent;
  }

  // Whether all members come to a step before one ends.
  bool all_reach(step s, std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] {
      return std::all_of(members_.begin(), members_.end(),
                         [s](const member &m) { return m.reached && *m.reached >= s; });
    };
    const auto is_over = [&] {
      return is_there() ||
             std::any_of(members_.begin(), members_.end(), [](const member &m) { return m.ended; });
    };
    (void)changed_.wait_for(lock, time, is_over);
    return is_there();
  }

  void decide() {
    // A step of the last round may come between, so what counts is that all have come so far.
    const bool can_stop = all_reach(step::ready, within_);
    if (!can_stop) return abort();
    say("can be stopped");
    if (!advance(group_state::stopping)) return abort();
    if (!all_reach(step::intent_recorded, tasks_.front().request.group_timeout)) return abort();
    say("are stopped, all memory has arrived, every digest compared, and the intents to give up "
        "ownership are on record");
    commit_asked_ = true;
    if (advance(group_state::committed)) say("move");
  }

  // Every task answers soon after the decision, unless its process stands still.
  void give_up_later() {
    std::unique_lock lock(mutex_);
    const auto &r = tasks_.front().request;
    const auto time =
        state_ == group_state::aborted ? r.timeout : std::max(within_, r.group_timeout);
    (void)changed_.wait_for(lock, time, [this] {
      return std::all_of(members_.begin(), members_.end(),
                         [](const member &m) { return m.ended || !m.asked; });
    });
    given_up_.request_stop();
  }

  void abort() { (void)advance(group_state::aborted); }

  // Tries again: while the decider is away, nothing is decided.
  bool advance(group_state to) {
    const auto until = clock::now() + tasks_.front().request.timeout;
    for (;;) {
      const auto now =
          migration::advance_group(decider_, id_, to, {}, tasks_.front().request.timeout);
      if (now) state_ = *now;
      if (now) return *now == to;
      if (clock::now() > until) return false;
      std::this_thread::sleep_for(resolve_interval);
    }
  }

  void say(const char *what) const {
    if (!silent_) fmt::print(stderr, "migrate: all {} {}\n", counted(tasks_.size(), "task"), what);
  }

  const std::vector<group_task> &tasks_;
  migration::transport &decider_;
  const migration::group_id id_;
  const std::chrono::milliseconds within_;
  const bool silent_;
  group_state state_ = group_state::open;  // as last seen
  bool commit_asked_ = false;
  std::stop_source given_up_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<member> members_;  // what the threads change, guarded by mutex_
};

}  // namespace

outcome<std::vector<std::string>> receivers_of(const std::string &text) {
  std::vector<std::string> out;
  for (const std::string &one : split(text, ',')) {
    const std::size_t colon = one.rfind(':');
    unsigned first = 0, last = 0;
    if (colon == std::string::npos || colon == 0 ||
        !parse_ports(one.substr(colon + 1), first, last)) {
      return fail(exit_usage, fmt::format("--to: '{}' is neither HOST:PORT nor HOST:PORT-PORT, of "
                                          "at most {} ports",
                                          printable(one), max_group_tasks));
    }
    for (unsigned port = first; port <= last; ++port) {
      out.push_back(one.substr(0, colon + 1) + std::to_string(port));
    }
  }
  return out;
}

outcome<moved_group> migrate_group(const std::vector<group_task> &tasks,
                                   migration::transport &decider, std::chrono::milliseconds within,
                                   bool silent) {
  if (tasks.size() > max_group_tasks) {
    return fail(exit_usage, fmt::format("{} tasks are meant, and a group has at most {}",
                                        tasks.size(), max_group_tasks));
  }
  const operation_scope scope("stillmap task");
  const auto id = migration::make_group_id();
  if (!id) return fail(id.error());
  const auto begun =
      migration::advance_group(decider, *id, group_state::open, {}, tasks.front().request.timeout);
  if (!begun) return fail(begun.error().about(tasks.front().request.decider));
  return group_run(tasks, decider, *id, within, silent).run();
}

}  // namespace stillmap::tool
