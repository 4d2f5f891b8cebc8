#include "tools/stillmap/machine/process_identity.h"

#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "tools/stillmap/common/text.h"
#include "tools/stillmap/machine/process_file.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t id_digits = 64, shown_digits = 12;

bool is_hexadecimal(const std::string &text) {
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// "job_4711" -> "4711"; empty: it is none.
std::string behind(const std::string &part, const std::string &front) {
  return part.starts_with(front) ? part.substr(front.size()) : std::string();
}

std::string without(std::string text, const std::string &end) {
  if (text.ends_with(end)) text.resize(text.size() - end.size());
  return text;
}

// The id of a container: the last 64 digits of "docker-ID.scope", "cri-containerd-ID.scope", "libpod-ID.scope" or "ID".
std::string container_in(const std::string &part) {
  const std::string name = without(part, ".scope");
  if (name.size() < id_digits) return {};
  const std::string id = name.substr(name.size() - id_digits);
  const bool alone = name.size() == id_digits || name[name.size() - id_digits - 1] == '-';
  return alone && is_hexadecimal(id) ? id.substr(0, shown_digits) : std::string();
}

// "pod1f3b2c4d-…", or as systemd writes it: "kubepods-burstable-pod1f3b2c4d_….slice".
std::string pod_in(const std::string &part) {
  const std::string name = without(part, ".slice");
  const std::size_t at = name.starts_with("pod") ? 0 : name.rfind("-pod");
  if (at == std::string::npos) return {};
  std::string uid = name.substr(at + (at == 0 ? 3 : 4));
  std::replace(uid.begin(), uid.end(), '_', '-');
  constexpr std::size_t uid_characters = 36;
  return uid.size() == uid_characters && is_hexadecimal(uid.substr(0, 8)) ? uid : std::string();
}

void read_path(const std::string &path, process_identity &into) {
  std::istringstream parts(path);
  std::string job, step, container, pod;
  for (std::string part; std::getline(parts, part, '/');) {
    if (const std::string n = behind(part, "job_"); is_number(n)) job = n;
    if (const std::string n = behind(part, "step_"); !n.empty() && !job.empty()) step = n;
    if (std::string id = container_in(part); !id.empty()) container = id;
    if (std::string uid = pod_in(part); !uid.empty()) pod = uid;
  }
  if (!job.empty()) into.job = job + (step.empty() ? "" : "." + step);
  if (!container.empty()) into.container = container;
  if (!pod.empty()) into.pod = pod;
}

std::string variable(const std::string &environment, const std::string &name) {
  std::istringstream all(environment);
  for (std::string one; std::getline(all, one, '\0');) {
    if (std::string value = behind(one, name + "="); !value.empty()) return value;
  }
  return {};
}

std::string user_name(uid_t uid) {
  std::vector<char> buffer(4096);
  passwd entry{};
  passwd *found = nullptr;
  const bool known = ::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) == 0;
  return known && found != nullptr ? found->pw_name : std::to_string(uid);
}

}  // namespace

std::string process_identity::place() const {
  if (!job.empty()) return "job " + job;
  if (!pod.empty()) return "pod " + pod.substr(0, 8);
  return container.empty() ? "" : "container " + container;
}

void read_cgroup(const std::string &text, process_identity &into) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "12:devices:/slurm/…", and "0::/…" of version 2.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second != std::string::npos) read_path(line.substr(second + 1), into);
  }
}

std::uint64_t start_time_of(pid_t pid) {
  const std::string ticks = stat_word(pid, 19);
  return is_number(ticks) ? std::stoull(ticks) : 0;
}

process_identity identify(pid_t pid) {
  process_identity out;
  out.pid = pid;  // also of one that has ended
  out.start_time = start_time_of(pid);
  if (out.start_time == 0) return out;
  struct stat folder {};
  if (::stat(("/proc/" + std::to_string(pid)).c_str(), &folder) == 0) {
    out.uid = folder.st_uid;
    out.user = user_name(out.uid);
  }
  out.name = process_file(pid, "comm");
  if (out.name.ends_with('\n')) out.name.pop_back();
  read_cgroup(process_file(pid, "cgroup"), out);
  if (out.job.empty()) {
    const std::string environment = process_file(pid, "environ");
    if (const std::string job = variable(environment, "SLURM_JOB_ID"); is_number(job)) {
      const std::string step = variable(environment, "SLURM_STEP_ID");
      out.job = job + (is_number(step) ? "." + step : "");
    }
  }
  return out;
}

}  // namespace stillmap::tool
