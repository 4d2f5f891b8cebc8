#include "tools/stillmap/machine/machine_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/address.h"

namespace stillmap::tool {
namespace {

// As NVML writes it: "GPU-01020304-0506-0708-090a-0b0c0d0e0f10".
std::string uuid_text(const std::array<unsigned char, 16> &uuid) {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", uuid[i]);
  }
  return out;
}

struct answer {
  std::string uuid;  // of its device; empty: it gave no status
  std::string device_name;
  std::uint64_t total = 0, used = 0;  // of the device, as this process sees it
  task_view task;
};

std::uint64_t capped_sum(std::uint64_t a, std::uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

// A task can say what it likes: more than its device has is not believed, nor memory of an unknown one.
void disbelieve_excess(answer &a) {
  task_view &t = a.task;
  if (t.mapped <= a.total && t.published <= t.mapped) return;
  t.trouble = fmt::format("says that it has {} of the device's {}",
                          format_bytes(std::max(t.mapped, t.published)), format_bytes(a.total));
  t.mapped = t.suspended = t.published = 0;
  t.tags.clear();
  t.memory.reset();
}

answer answer_of(std::string socket, const result<control::process_status> &s) {
  answer out;
  out.task.socket = std::move(socket);
  out.task.process.pid = pid_in(out.task.socket);
  if (!s) {
    out.task.trouble = s.error().is(errc::busy) ? "no answer" : s.error().message();
    return out;
  }
  out.uuid = uuid_text(s->uuid);
  out.device_name = s->device;
  out.total = s->memory_total;
  out.used = s->memory_total - std::min(s->memory_free, s->memory_total);
  out.task.process.pid = s->pid;
  control::tag_status rest;
  rest.mapped_bytes = s->omitted_mapped_bytes;
  rest.suspended_bytes = s->omitted_suspended_bytes;
  for (const control::tag_status &t : s->tags) {
    if (!t.tag.empty() && out.task.tags.size() < task_view::most_tags) {
      out.task.tags.push_back(t);
      continue;
    }
    rest.mapped_bytes = capped_sum(rest.mapped_bytes, t.mapped_bytes);
    rest.suspended_bytes = capped_sum(rest.suspended_bytes, t.suspended_bytes);
  }
  if (rest.mapped_bytes != 0 || rest.suspended_bytes != 0) out.task.tags.push_back(rest);
  for (const control::tag_status &t : out.task.tags) {
    out.task.mapped = capped_sum(out.task.mapped, t.mapped_bytes);
    out.task.suspended = capped_sum(out.task.suspended, t.suspended_bytes);
  }
  out.task.published = s->published_bytes;
  out.task.memory = s->memory;
  out.task.job = s->job;
  disbelieve_excess(out);
  return out;
}

// Who waits in a quota, by process, and whom each has asked since.
std::map<std::uint32_t, quota_wait> waits_in(const std::string &name) {
  std::map<std::uint32_t, quota_wait> out;
  const auto stats = shared_quota::stats_of(name);
  const auto events = shared_quota::events_of(name);
  if (!stats || !events) return out;
  for (const quota_participant &p : stats->participants) {
    if (p.waiting != 0) out[p.process].bytes = p.waiting;
  }
  for (const quota_event &e : *events) {
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

// The waits of the quotas that tasks name. A name that is a path is not followed: a task may give any.
class quota_waits {
 public:
  quota_wait of(const task_view &t) {
    if (!t.memory || t.memory->quota.empty()) return {};
    const std::string &name = t.memory->quota;
    if (name.find('/') != std::string::npos || (read_.size() == most && !read_.contains(name)))
      return {};
    const auto q = read_.try_emplace(name);
    if (q.second) q.first->second = waits_in(name);
    const auto w = q.first->second.find(static_cast<std::uint32_t>(t.process.pid));
    return w != q.first->second.end() ? w->second : quota_wait();
  }

 private:
  static constexpr std::size_t most = 64;
  std::map<std::string, std::map<std::uint32_t, quota_wait>> read_;
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
        figures_[{d.uuid, static_cast<pid_t>(p.pid)}] = {p.bytes};
      }
    }
    asked_driver_ = !devices.empty();
  }

  // What the task has on its device, and which one that is where it did not say.
  void complete(answer &a) {
    const pid_t pid = a.task.process.pid;
    if (a.uuid.empty()) a.uuid = device_that_knows(pid);
    a.task.held = a.task.mapped;
    const auto f = figures_.find({a.uuid, pid});
    if (f != figures_.end() && f->second.bytes) {
      a.task.held = std::exchange(f->second.counted, true) ? 0 : *f->second.bytes;
    }
    a.task.wait = quotas_.of(a.task);
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

  std::string device_that_knows(pid_t pid) const {
    for (const auto &[key, bytes] : figures_) {
      if (pid != 0 && key.second == pid) return key.first;
    }
    return {};
  }

  void account(device_view &d) const {
    std::set<pid_t> ours;
    std::uint64_t held = 0;
    for (const task_view &t : d.tasks) {
      ours.insert(t.process.pid);
      held += t.held;
    }
    d.used = std::max(d.used, held);  // measured at different moments
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
  if (wait.bytes == 0) return "runs";
  std::vector<std::string> asked;
  for (const std::uint32_t pid : wait.asked) asked.push_back(std::to_string(pid));
  return "waits for " + format_bytes(wait.bytes) + (asked.empty() ? "" : " of ") +
         join(asked, ", ");
}

machine_watch::machine_watch(std::vector<std::string> folders, std::chrono::milliseconds timeout)
    : folders_(std::move(folders)), timeout_(timeout) {
  if (auto opened = nvml::open()) nvml_ = std::move(*opened);
}

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
  if (nvml_) gathered.add_driver_figures(nvml_->devices());
  const auto now = std::chrono::steady_clock::now();
  std::map<task_key, sample> samples;
  std::map<pid_t, process_identity> alive;
  for (std::size_t i = 0; i < found.sockets.size(); ++i) {
    answer a = answer_of(found.sockets[i], statuses[i]);
    const pid_t pid = a.task.process.pid;
    if (pid != 0) alive[pid] = a.task.process = identity_of(pid);
    gathered.complete(a);
    a.task.growth = growth_of(a.task, now);
    samples[{a.task.socket, pid}] = {a.task.held, now};
    gathered.add(std::move(a));
  }
  last_ = std::move(samples);
  identities_ = std::move(alive);
  return gathered.take();
}

}  // namespace stillmap::tool
