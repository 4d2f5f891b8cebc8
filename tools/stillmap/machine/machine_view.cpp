#include "tools/stillmap/machine/machine_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

struct answer {
  std::string uuid;  // of its device; empty: it gave no status
  std::string device_name;
  std::uint64_t total = 0, used = 0;  // of the device, as this process sees it
  task_view task;
};

std::uint64_t capped_sum(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

// Above it no process has addresses.
constexpr std::uint64_t most_addresses = std::uint64_t{1} << 57;

bool is_possible(const task_view &t) {
  const control::memory_figures none, &m = t.memory ? *t.memory : none;
  for (const std::uint64_t bytes :
       {t.mapped, t.suspended, m.allocated, m.cached, m.evictable, m.limit}) {
    if (bytes > most_addresses) return false;
  }
  return t.published <= t.mapped;
}

// A task can say what it likes: more than its device has is not believed. `total`: as the driver says, where it is asked.
void disbelieve_excess(task_view &t, std::uint64_t total) {
  if (t.mapped <= total && is_possible(t)) return;
  t.trouble = fmt::format("says that it has {} of the device's {}",
                          format_bytes(std::max(t.mapped, t.published)), format_bytes(total));
  if (t.mapped <= total) t.trouble = "says what no task can have";
  t.mapped = t.suspended = t.published = 0;
  t.tags.clear();
  t.memory.reset();
}

// The first tags; those with a longer name, and those behind them, are one without a name. Equal names are one tag.
void add_tag(std::vector<control::tag_status> &tags, const control::tag_status &t) {
  constexpr std::size_t longest = 200;
  const bool has_name = !t.tag.empty() && t.tag.size() <= longest;
  const auto of_name = [&](const std::string &name) {
    return std::find_if(tags.begin(), tags.end(), [&](const auto &one) { return one.tag == name; });
  };
  auto to = of_name(has_name ? t.tag : "");
  if (to == tags.end()) {
    const bool room = tags.size() < task_view::most_tags;
    if (!room) to = of_name("");
    if (to == tags.end()) {
      tags.emplace_back().tag = has_name && room ? t.tag : "";
      to = std::prev(tags.end());
    }
  }
  to->mapped_bytes = capped_sum(to->mapped_bytes, t.mapped_bytes);
  to->suspended_bytes = capped_sum(to->suspended_bytes, t.suspended_bytes);
}

answer answer_of(std::string socket, const control::queried_status &q) {
  answer out;
  task_view &t = out.task;
  t.socket = std::move(socket);
  // Not what the task says of itself, nor its socket's name.
  t.process.pid = q.server ? q.server->pid : 0;
  if (!q.status) {
    t.trouble = q.status.error().is(errc::busy) ? "no answer" : failure(q.status.error()).line;
    return out;
  }
  const control::process_status &s = *q.status;
  out.uuid = uuid_text(s.uuid);
  out.device_name = s.device;
  out.total = s.memory_total;
  out.used = s.memory_total - std::min(s.memory_free, s.memory_total);
  for (const control::tag_status &tag : s.tags) add_tag(t.tags, tag);
  if (s.omitted_tags != 0) {
    control::tag_status rest;
    rest.mapped_bytes = s.omitted_mapped_bytes;
    rest.suspended_bytes = s.omitted_suspended_bytes;
    add_tag(t.tags, rest);
  }
  for (const control::tag_status &tag : t.tags) {
    t.mapped = capped_sum(t.mapped, tag.mapped_bytes);
    t.suspended = capped_sum(t.suspended, tag.suspended_bytes);
  }
  t.published = s.published_bytes;
  t.memory = s.memory;
  t.job = s.job;
  return out;
}

using process_waits = std::map<std::uint32_t, quota_wait>;

// Who waits in a quota, by process, and whom each has asked since. Nullopt: it cannot be read.
std::optional<process_waits> waits_in(const std::string &name, uid_t owner) {
  process_waits out;
  const auto seen = shared_quota::observe(name, owner);
  if (!seen) return std::nullopt;
  for (const quota_participant &p : seen->stats.participants) {
    if (p.waiting != 0) out[p.process].bytes = p.waiting;
  }
  for (const quota_event &e : seen->events) {
    if (e.action == quota_action::waits) {
      if (const auto w = out.find(e.process); w != out.end()) w->second.asked.clear();
    } else if (e.action == quota_action::asked) {
      if (const auto w = out.find(e.other); w != out.end()) w->second.asked.push_back(e.process);
    }
  }
  for (auto &[process, wait] : out) {
    std::sort(wait.asked.begin(), wait.asked.end());
    wait.asked.erase(std::unique(wait.asked.begin(), wait.asked.end()), wait.asked.end());
  }
  return out;
}

// The waits of the quotas that tasks name. A name that is a path is not followed: a task may give any. The file has to
// be of the task's user: what another one has written is not believed of it.
class quota_waits {
 public:
  // Nullopt: it takes part in none, or in one that this user cannot read.
  std::optional<quota_wait> of(const task_view &t) {
    if (!t.memory || t.memory->quota.empty() || t.process.start_time == 0) return std::nullopt;
    const key which{t.memory->quota, t.process.uid};
    if (!read_.contains(which) && ++of_user_[which.second] > most_of_user) return std::nullopt;
    const auto q = read_.try_emplace(which);
    if (q.second) q.first->second = waits_in(which.first, which.second);
    if (!q.first->second) return std::nullopt;
    const auto w = q.first->second->find(static_cast<std::uint32_t>(t.process.pid));
    if (w == q.first->second->end()) return quota_wait();
    return w->second.bytes <= most_addresses ? w->second : quota_wait();
  }

 private:
  using key = std::pair<std::string, uid_t>;
  static constexpr std::size_t most_of_user = 16;  // no user keeps others' from being read
  std::map<key, std::optional<process_waits>> read_;
  std::map<uid_t, std::size_t> of_user_;
};

// A view that is made.
class gathering {
 public:
  void add_driver_figures(const std::vector<device_usage> &devices) {
    for (const device_usage &d : devices) {
      device_view &to = device_of(d.uuid);
      to.name = d.name;
      to.total = d.total;
      to.used = d.used;
      for (const process_usage &p : d.processes) {
        // Once for each instance of a divided device.
        figure &f = figures_[{d.uuid, static_cast<pid_t>(p.pid)}];
        if (p.bytes) f.bytes = capped_sum(f.bytes.value_or(0), *p.bytes);
      }
    }
    asked_driver_ = !devices.empty();
  }

  // Which device the task is on, and what the driver says that it has there.
  void complete(answer &a) {
    task_view &t = a.task;
    if (asked_driver_ && !knows(a.uuid)) a.uuid = device_that_knows(t.process.pid);
    if (t.trouble.empty()) disbelieve_excess(t, asked_driver_ ? total_of(a.uuid) : a.total);
    const auto f = figures_.find({a.uuid, t.process.pid});
    if (f != figures_.end() && f->second.bytes) {
      t.held = std::exchange(f->second.counted, true) ? 0 : *f->second.bytes;
      t.held_is_known = true;
    }
    t.wait = quotas_.of(t);
  }

  void add(answer a) {
    if (a.uuid.empty()) {
      view_.without_device.push_back(std::move(a.task));
      return;
    }
    device_view &d = device_of(a.uuid);
    if (!asked_driver_) {  // the tasks' own driver has said it
      d.name = a.device_name;
      d.total = std::max(d.total, a.total);
      d.used = std::max(d.used, a.used);
    }
    d.tasks.push_back(std::move(a.task));
  }

  machine_view take() {
    for (device_view &d : view_.devices) account(d);
    return std::move(view_);
  }

 private:
  struct figure {
    std::optional<std::uint64_t> bytes;
    bool counted = false;  // for a task; another one of the same process has it, too
  };

  device_view &device_of(const std::string &uuid) {
    for (device_view &d : view_.devices) {
      if (d.uuid == uuid) return d;
    }
    device_view &d = view_.devices.emplace_back();
    d.uuid = uuid;
    return d;
  }

  bool knows(const std::string &uuid) const { return total_of(uuid) != 0; }
  std::uint64_t total_of(const std::string &uuid) const {
    for (const device_view &d : view_.devices) {
      if (d.uuid == uuid) return d.total;
    }
    return 0;
  }

  std::string device_that_knows(pid_t pid) const {
    for (const auto &[key, bytes] : figures_) {
      if (pid != 0 && key.second == pid) return key.first;
    }
    return {};
  }

  // What tasks hold that the driver does not say is at most what it says that all use. So the sum is right.
  void account(device_view &d) const {
    std::set<pid_t> ours;
    std::uint64_t held = 0;
    for (const task_view &t : d.tasks) {
      ours.insert(t.process.pid);
      held = capped_sum(held, t.held);
    }
    d.used = std::max(d.used, held);  // the driver's own figures, of different moments
    for (task_view &t : d.tasks) {
      if (t.held_is_known) continue;
      t.held = std::min(t.mapped, d.used - held);
      held += t.held;
    }
    d.others = d.used - held;
    for (const auto &[key, bytes] : figures_) {
      if (key.first == d.uuid && !ours.contains(key.second)) ++d.other_processes;
    }
  }

  machine_view view_;
  std::map<std::pair<std::string, pid_t>, figure> figures_;  // by device
  bool asked_driver_ = false;
  quota_waits quotas_;
};

std::string job_state(const control::job_status &job) {
  std::string out = control::name_of(job.request);
  if (job.in_doubt) return out + " in doubt";
  if (job.total_bytes != 0) {
    out += fmt::format(" {:.0f} %", 100 * std::min(1.0, ratio(job.bytes, job.total_bytes)));
  }
  return out;
}

}  // namespace

std::string task_view::state() const {
  if (!trouble.empty()) return printable(trouble);
  if (job.request != control::request_kind::none) return job_state(job);
  if (suspended != 0) return mapped == 0 ? "suspended" : "partly suspended";
  if (!wait || wait->bytes == 0) return "runs";
  std::vector<std::string> asked;
  for (const std::uint32_t pid : wait->asked) asked.push_back(std::to_string(pid));
  return "waits for " + format_bytes(wait->bytes) + (asked.empty() ? "" : " of ") +
         join(asked, ", ");
}

machine_watch::machine_watch(std::vector<std::string> folders, std::chrono::milliseconds timeout,
                             std::vector<task_filter> filters)
    : folders_(std::move(folders)), timeout_(timeout), filters_(std::move(filters)) {}

machine_watch::~machine_watch() = default;

process_identity machine_watch::identity_of(pid_t pid) {
  process_identity &known = identities_[pid];
  if (known.start_time == 0 || known.start_time != start_time_of(pid)) known = identify(pid);
  return known;
}

double machine_watch::growth_of(const task_view &t,
                                std::chrono::steady_clock::time_point now) const {
  const auto before = last_.find({t.socket, t.process.pid});
  if (before == last_.end() || before->second.at == now) return 0;
  const double seconds = std::chrono::duration<double>(now - before->second.at).count();
  return (static_cast<double>(t.held) - static_cast<double>(before->second.held)) / seconds;
}

outcome<machine_view> machine_watch::look() {
  STILLMAP_ASSIGN_OR_RETURN(const auto found, control::find_tasks(folders_));
  STILLMAP_ASSIGN_OR_RETURN(const auto statuses, control::query_status(found.sockets, timeout_));
  gathering gathered;
  // A driver may be loaded later than this program.
  if (!nvml_) {
    if (auto opened = nvml::open()) nvml_ = std::move(*opened);
  }
  if (nvml_) gathered.add_driver_figures(nvml_->devices());
  const auto now = std::chrono::steady_clock::now();
  std::map<task_key, sample> samples;
  std::map<pid_t, process_identity> alive;
  for (std::size_t i = 0; i < found.sockets.size(); ++i) {
    answer a = answer_of(found.sockets[i], statuses[i]);
    const pid_t pid = a.task.process.pid;
    if (pid != 0) alive[pid] = a.task.process = identity_of(pid);
    if (!matches_all(filters_, a.task.process)) continue;
    gathered.complete(a);
    gathered.add(std::move(a));
  }
  machine_view view = gathered.take();
  view.driver_is_asked = nvml_ != nullptr;
  const auto grow = [&](std::vector<task_view> &tasks) {
    for (task_view &t : tasks) {
      t.growth = growth_of(t, now);
      samples[{t.socket, t.process.pid}] = {t.held, now};
    }
  };
  for (device_view &d : view.devices) grow(d.tasks);
  last_ = std::move(samples);
  identities_ = std::move(alive);
  return view;
}

}  // namespace stillmap::tool
