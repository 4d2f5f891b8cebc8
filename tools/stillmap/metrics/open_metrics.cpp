#include "tools/stillmap/metrics/open_metrics.h"

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "stillmap/vmm/base/utf8.h"
#include "stillmap/vmm/base/version.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {
namespace {

using labels = std::vector<std::pair<const char *, std::string>>;

// Families of gauges, each with its samples.
class document {
 public:
  void begin(const char *name, const char *help, const char *unit = "") {
    name_ = std::string("stillmap_") + name;
    text_ += fmt::format("# TYPE {} gauge\n", name_);
    if (*unit != 0) text_ += fmt::format("# UNIT {} {}\n", name_, unit);
    text_ += fmt::format("# HELP {} {}\n", name_, help);
  }
  void sample(const labels &all, std::uint64_t value) { add(all, std::to_string(value)); }
  void sample(const labels &all, double value) { add(all, fmt::format("{}", value)); }
  std::string take() { return std::move(text_); }

 private:
  void add(const labels &all, const std::string &value) {
    text_ += name_;
    char before = '{';
    for (const auto &[name, text] : all) {
      text_ += fmt::format("{}{}=\"{}\"", before, name, label_value(text));
      before = ',';
    }
    text_ += (all.empty() ? " " : "} ") + value + "\n";
  }

  std::string text_, name_;
};

labels labels_of(const device_view &d) {
  return {{"device", d.uuid}, {"name", d.name}};
}

labels labels_of(const task_view &t, const device_view *d) {
  const process_identity &p = t.process;
  return {{"device", d != nullptr ? d->uuid : ""},
          {"task", t.socket},
          {"pid", std::to_string(p.pid)},
          {"user", p.user},
          {"program", p.name},
          {"slurm_job", p.job},
          {"container", p.container},
          {"pod", p.pod}};
}

template <class Visit>
void each_task(const machine_view &view, const Visit &visit) {
  for (const device_view &d : view.devices) {
    for (const task_view &t : d.tasks) visit(t, &d);
  }
  for (const task_view &t : view.without_device)
    visit(t, static_cast<const device_view *>(nullptr));
}

// One value of each task; nullopt: it does not say.
struct task_figure {
  const char *name, *help, *unit;
  std::optional<std::uint64_t> (*value)(const task_view &);
};

template <std::uint64_t control::memory_figures::*figure>
std::optional<std::uint64_t> figure_of(const task_view &t) {
  if (!t.memory) return std::nullopt;
  return (*t.memory).*figure;
}

// Of a task that answers: what does not answer has not resumed, nor settled its migration.
template <std::uint64_t task_view::*bytes>
std::optional<std::uint64_t> said_of(const task_view &t) {
  return t.trouble.empty() ? std::optional(t.*bytes) : std::nullopt;
}

using figures = control::memory_figures;
constexpr task_figure task_figures[] = {
    {"task_up", "1 if the task answers and is believed", "",
     [](const task_view &t) { return std::optional<std::uint64_t>(t.trouble.empty() ? 1 : 0); }},
    {"task_held_bytes", "Memory that the process has on the device, as the driver says", "bytes",
     [](const task_view &t) {
       return t.held_is_known || t.trouble.empty() ? std::optional(t.held) : std::nullopt;
     }},
    {"task_mapped_bytes", "Memory of tags that is mapped", "bytes", said_of<&task_view::mapped>},
    {"task_suspended_bytes", "Memory of tags that is suspended", "bytes",
     said_of<&task_view::suspended>},
    {"task_published_bytes", "Mapped memory that a holder has for other processes", "bytes",
     said_of<&task_view::published>},
    {"task_live_bytes", "Blocks that the program uses, as its allocator says", "bytes",
     figure_of<&figures::allocated>},
    {"task_cached_bytes", "Memory that the allocator keeps for later requests", "bytes",
     figure_of<&figures::cached>},
    {"task_evictable_bytes", "Memory that the task gives to others that ask", "bytes",
     figure_of<&figures::evictable>},
    {"task_limit_bytes", "Memory that the task may have", "bytes",
     [](const task_view &t) {
       const auto limit = figure_of<&figures::limit>(t);
       return limit && *limit == 0 ? std::nullopt : limit;
     }},
    {"task_waits_for_bytes", "Memory of a shared quota that the task waits for", "bytes",
     [](const task_view &t) { return t.wait ? std::optional(t.wait->bytes) : std::nullopt; }},
    {"task_in_doubt", "1 if a migration has to be resolved: the owner of the memory is unknown", "",
     [](const task_view &t) {
       return t.trouble.empty() ? std::optional<std::uint64_t>(t.job.in_doubt ? 1 : 0)
                                : std::nullopt;
     }},
};

void write_devices(document &to, const machine_view &view) {
  to.begin("device_memory_bytes", "Memory of the device", "bytes");
  for (const device_view &d : view.devices) to.sample(labels_of(d), d.total);
  to.begin("device_used_bytes", "Memory of the device that is used, as the driver says", "bytes");
  for (const device_view &d : view.devices) to.sample(labels_of(d), d.used);
  to.begin("device_others_bytes", "Of that, memory of what is no task", "bytes");
  for (const device_view &d : view.devices) to.sample(labels_of(d), d.others);
  to.begin("device_other_processes", "Processes on the device that are no task");
  for (const device_view &d : view.devices)
    to.sample(labels_of(d), std::uint64_t{d.other_processes});
  to.begin("device_tasks", "Tasks on the device");
  for (const device_view &d : view.devices) to.sample(labels_of(d), std::uint64_t{d.tasks.size()});
}

void write_tasks(document &to, const machine_view &view) {
  for (const task_figure &f : task_figures) {
    to.begin(f.name, f.help, f.unit);
    each_task(view, [&](const task_view &t, const device_view *d) {
      if (const auto value = f.value(t)) to.sample(labels_of(t, d), *value);
    });
  }
  to.begin("task_request", "1 for the request that the task carries out");
  each_task(view, [&](const task_view &t, const device_view *d) {
    if (t.job.request == control::request_kind::none) return;
    labels all = labels_of(t, d);
    all.emplace_back("request", control::name_of(t.job.request));
    to.sample(all, std::uint64_t{1});
  });
}

void write_tags(document &to, const machine_view &view) {
  const auto write = [&](const char *name, const char *help,
                         std::uint64_t control::tag_status::*bytes) {
    to.begin(name, help, "bytes");
    each_task(view, [&](const task_view &t, const device_view *d) {
      for (const control::tag_status &tag : t.tags) {
        to.sample({{"device", d != nullptr ? d->uuid : ""}, {"task", t.socket}, {"tag", tag.tag}},
                  tag.*bytes);
      }
    });
  };
  write("tag_mapped_bytes", "Mapped memory of a tag of a task", &control::tag_status::mapped_bytes);
  write("tag_suspended_bytes", "Suspended memory of a tag of a task",
        &control::tag_status::suspended_bytes);
}

std::string families_of(const machine_view &view, double look_seconds) {
  document out;
  out.begin("build", "1, with the version");
  out.sample({{"version", STILLMAP_VERSION_STRING}}, std::uint64_t{1});
  out.begin("look_seconds", "How long it took to ask the driver and all tasks", "seconds");
  out.sample({}, look_seconds);
  out.begin("driver_up", "1 if NVML answers: else figures are those of the tasks");
  out.sample({}, std::uint64_t{view.driver_is_asked});
  write_devices(out, view);
  write_tasks(out, view);
  write_tags(out, view);
  return out.take();
}

}  // namespace

std::string label_value(const std::string &text) {
  std::string out;
  for (std::string_view left = text; !left.empty();) {
    const utf8::character c = utf8::first_of(left);
    const bool valid = c.point != utf8::replacement || c.bytes > 1;
    if (!valid || utf8::is_control(c.point)) {
      for (const char byte : left.substr(0, c.bytes))
        out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(byte));
    } else {
      if (c.point == U'\\' || c.point == U'"') out += '\\';
      out += left.substr(0, c.bytes);
    }
    left.remove_prefix(c.bytes);
  }
  return out;
}

std::string open_metrics_of(const machine_view &view, double look_seconds) {
  return families_of(view, look_seconds) + "# EOF\n";
}

std::string text_file_of(const machine_view &view, double look_seconds) {
  // Prometheus's own format has no units.
  const std::string families = families_of(view, look_seconds);
  std::string out;
  for (std::size_t at = 0; at < families.size();) {
    const std::size_t end = families.find('\n', at) + 1;
    const std::string line = families.substr(at, end - at);
    if (!line.starts_with("# UNIT ")) out += line;
    at = end;
  }
  return out;
}

}  // namespace stillmap::tool
