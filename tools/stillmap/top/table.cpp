#include "tools/stillmap/top/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/task/request.h"

namespace stillmap::tool {
namespace {

constexpr std::array<const char *, 8> key_names{"held",   "live", "cached", "suspended",
                                                "growth", "pid",  "user",   "name"};

std::uint64_t live_of(const task_view &t) {
  return t.memory ? t.memory->allocated : t.mapped;
}
std::uint64_t cached_of(const task_view &t) {
  return t.memory ? t.memory->cached : 0;
}

bool comes_first(const task_view &a, const task_view &b, sort_key by) {
  switch (by) {
    case sort_key::held:
      return a.held > b.held;
    case sort_key::live:
      return live_of(a) > live_of(b);
    case sort_key::cached:
      return cached_of(a) > cached_of(b);
    case sort_key::suspended:
      return a.suspended > b.suspended;
    case sort_key::growth:
      return a.growth > b.growth;
    case sort_key::pid:
      return a.process.pid < b.process.pid;
    case sort_key::user:
      return a.process.user < b.process.user;
    case sort_key::name:
      return a.process.name < b.process.name;
  }
  return false;
}

// A cell that is empty rather than 0.
std::string bytes_cell(std::uint64_t bytes) {
  return bytes == 0 ? "-" : format_bytes(bytes);
}

std::string growth_cell(double bytes_per_second) {
  const double size = std::min(std::abs(bytes_per_second), 1e18);
  if (size < 1024) return "-";
  return (bytes_per_second < 0 ? "-" : "+") + format_bytes(static_cast<std::uint64_t>(size)) + "/s";
}

constexpr const char *row_format =
    "{:>8}  {:<8.8}  {:<15.15}  {:<13.13}  {:>9}  {:>9}  {:>9}  {:>9}  {:>12}  ";

std::string heading() {
  return fmt::format(row_format, "pid", "user", "program", "job or pod", "held", "live", "cached",
                     "suspended", "growth") +
         "state";
}

std::string line_of(const task_view &t) {
  const process_identity &p = t.process;
  return fmt::format(row_format, p.pid == 0 ? std::string("-") : std::to_string(p.pid),
                     p.user.empty() ? "-" : printable(p.user),
                     p.name.empty() ? "-" : printable(p.name),
                     p.place().empty() ? "-" : printable(p.place()), bytes_cell(t.held),
                     bytes_cell(live_of(t)), bytes_cell(cached_of(t)), bytes_cell(t.suspended),
                     growth_cell(t.growth)) +
         t.state();
}

std::string others_line(const device_view &d) {
  const std::string what = d.other_processes == 0 ? std::string("the driver")
                                                  : counted(d.other_processes, "other process");
  return fmt::format(row_format, "-", "-", what, "-", bytes_cell(d.others), "-", "-", "-", "-") +
         "not of Stillmap";
}

std::string bar(double share, bool utf8) {
  constexpr int cells = 20;
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * cells));
  std::string out;
  for (int i = 0; i < cells; ++i) out += i < full ? (utf8 ? "█" : "#") : (utf8 ? "░" : ".");
  return out;
}

std::string device_line(std::size_t number, const device_view &d, bool utf8) {
  const double share = ratio(d.used, d.total);
  return fmt::format("device {}  {}  {} of {} used  {} {:.0f} %  {}", number,
                     d.name.empty() ? "-" : printable(d.name), format_bytes(d.used),
                     format_bytes(d.total), bar(share, utf8), 100 * share,
                     counted(d.tasks.size(), "task"));
}

}  // namespace

sort_key sort_key_of(const std::string &name) {
  const auto found = std::find(key_names.begin(), key_names.end(), name);
  return found == key_names.end() ? sort_key::held
                                  : static_cast<sort_key>(std::distance(key_names.begin(), found));
}

const char *name_of(sort_key k) {
  return key_names[static_cast<std::size_t>(k)];
}

sort_key next_key(sort_key k, int step) {
  const int n = static_cast<int>(key_names.size());
  return static_cast<sort_key>((static_cast<int>(k) + step + n) % n);
}

void sort_tasks(machine_view &view, sort_key by) {
  const auto sort = [&](std::vector<task_view> &tasks) {
    std::stable_sort(tasks.begin(), tasks.end(),
                     [&](const auto &a, const auto &b) { return comes_first(a, b, by); });
  };
  for (device_view &d : view.devices) sort(d.tasks);
  sort(view.without_device);
}

std::vector<table_line> table_of(const machine_view &view, std::size_t width, bool utf8) {
  using kind = table_line::kind;
  std::vector<table_line> out;
  const auto add = [&](kind k, const std::string &text, const task_view *task = nullptr) {
    out.push_back({k, first_columns(text, width), task});
  };
  for (std::size_t i = 0; i < view.devices.size(); ++i) {
    const device_view &d = view.devices[i];
    add(kind::device, device_line(i, d, utf8));
    add(kind::heading, heading());
    for (const task_view &t : d.tasks) add(kind::task, line_of(t), &t);
    if (d.others != 0 || d.other_processes != 0) add(kind::others, others_line(d));
  }
  if (view.without_device.empty()) return out;
  add(kind::device, "tasks that do not say which device they use");
  add(kind::heading, heading());
  for (const task_view &t : view.without_device) add(kind::task, line_of(t), &t);
  return out;
}

std::vector<std::string> details_of(const task_view &t, const device_view *on) {
  std::vector<std::string> out;
  const auto add = [&](const char *what, const std::string &value) {
    if (!value.empty()) out.push_back(fmt::format("{:<14}{}", what, value));
  };
  const process_identity &p = t.process;
  add("socket", printable(t.socket));
  add("process", fmt::format("{} {}", p.pid, printable(p.name)));
  add("user", fmt::format("{} ({})", printable(p.user), p.uid));
  add("Slurm job", printable(p.job));
  add("container", printable(p.container));
  add("pod", printable(p.pod));
  if (on != nullptr) add("device", fmt::format("{}, {}", printable(on->name), printable(on->uuid)));
  add("state", t.state());
  if (!job_text(t.job).empty()) add("request", job_text(t.job));
  add("held", human_and_exact(t.held));
  add("mapped", human_and_exact(t.mapped));
  add("suspended", human_and_exact(t.suspended));
  add("published", human_and_exact(t.published));
  if (!t.memory) return out;
  add("live", human_and_exact(t.memory->allocated));
  add("cached", human_and_exact(t.memory->cached));
  add("evictable", human_and_exact(t.memory->evictable));
  if (t.memory->limit != 0) add("limit", human_and_exact(t.memory->limit));
  add("quota", printable(t.memory->quota));
  return out;
}

}  // namespace stillmap::tool
