#include "tools/stillmap/slurm/job_tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "stillmap/checkpoint/control/find_tasks.h"
#include "stillmap/checkpoint/control/status_query.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/machine/listening_process.h"
#include "tools/stillmap/machine/task_filter.h"
#include "tools/stillmap/slurm/job_owner.h"

namespace stillmap::tool {
namespace {

// For all tasks of the machine, of which stopped ones do not answer; and for those of the job.
constexpr std::chrono::milliseconds first_look{50}, second_look{1'000};

job_task task_of(const std::string &socket, const result<control::process_status> &status) {
  job_task out;
  out.socket = socket;
  if (!status) return out;
  out.answers = true;
  out.device.assign(status->uuid.begin(), status->uuid.end());
  out.free = status->memory_free;
  out.in_request = status->job.request != control::request_kind::none;
  out.mapped = status->omitted_mapped_bytes;
  out.suspended = status->omitted_suspended_bytes;
  for (const control::tag_status &t : status->tags) {
    if (t.tag.empty()) continue;
    out.mapped += t.mapped_bytes;
    out.suspended += t.suspended_bytes;
  }
  out.mapped -= std::min(out.mapped, status->published_bytes);  // that stays mapped
  return out;
}

}  // namespace

time_limit time_limit_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

outcome<std::uint32_t> job_number(const std::string &text) {
  std::uint32_t number = 0;
  const char *const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end || number == 0)
    return fail(exit_usage, fmt::format("'{}' is no id of a job: a number from 1", text));
  return number;
}

outcome<std::vector<job_task>> find_job_tasks(std::uint32_t job) {
  const task_filter filter{"job", std::to_string(job)};
  const std::set<uid_t> owners = job_owners(job);
  STILLMAP_ASSIGN_OR_RETURN(const auto all, control::find_tasks());
  STILLMAP_ASSIGN_OR_RETURN(const auto asked, control::query_status(all.sockets, first_look));
  std::vector<job_task> out;
  std::vector<std::string> silent;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::string &socket = all.sockets[i];
    const pid_t pid = asked[i].server ? asked[i].server->pid : listening_process(socket);
    if (pid <= 0) continue;
    const process_identity process = identify(pid);
    // Another user's process that says it is of this job must not keep it from being suspended.
    if (!filter.matches(process) || !(owners.empty() || owners.contains(process.uid))) continue;
    if (asked[i].status) {
      out.push_back(task_of(socket, asked[i].status));
    } else {
      silent.push_back(socket);
    }
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto again, control::query_status(silent, second_look));
  for (std::size_t i = 0; i < again.size(); ++i) {
    const bool has_ended =
        !again[i].status && again[i].status.error().code == std::errc::connection_refused;
    if (!has_ended) out.push_back(task_of(silent[i], again[i].status));
  }
  return out;
}

std::uint64_t bytes_of(const std::vector<answered_task> &all) {
  std::uint64_t sum = 0;
  for (const answered_task &t : all) {
    if (t.done) sum += t.done->bytes;
  }
  return sum;
}

std::string tasks_text(std::uint32_t job, std::size_t tasks) {
  return fmt::format("{} of job {}", counted(tasks, "task"), job);
}

}  // namespace stillmap::tool
