#include "tools/stillmap/slurm/job_owner.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>

#include "tools/stillmap/common/text.h"
#include "tools/stillmap/machine/process_file.h"

namespace stillmap::tool {
namespace {

struct found_process {
  pid_t parent = 0;
  uid_t uid = 0;
  bool is_step = false;  // a slurmstepd of the job
};

std::map<pid_t, found_process> all_processes(std::uint32_t job) {
  // "slurmstepd: [812.batch]", and "[812.0]" of a step.
  const std::string title = fmt::format("slurmstepd: [{}.", job);
  std::map<pid_t, found_process> out;
  std::error_code trouble;
  std::filesystem::directory_iterator at("/proc", trouble);
  for (const std::filesystem::directory_iterator end; !trouble && at != end;
       at.increment(trouble)) {
    const std::string name = at->path().filename().string();
    pid_t pid = 0;
    const auto [rest, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    struct stat s {};
    if (error != std::errc() || *rest != '\0' || ::stat(at->path().c_str(), &s) != 0) continue;
    found_process &p = out[pid];
    p.uid = s.st_uid;
    const std::string parent = stat_word(pid, 1);
    p.parent = is_number(parent) ? std::stoi(parent) : 0;
    const bool is_trusted = p.uid == 0 || p.uid == ::geteuid();
    p.is_step = is_trusted && process_file(pid, "cmdline").starts_with(title);
  }
  return out;
}

}  // namespace

std::set<uid_t> job_owners(std::uint32_t job) {
  const auto all = all_processes(job);
  std::set<uid_t> out;
  for (const auto &[pid, p] : all) {
    const auto parent = all.find(p.parent);
    if (parent != all.end() && parent->second.is_step && !p.is_step) out.insert(p.uid);
  }
  // A helper of slurmstepd's own, such as the sleeping process of a step for what came by other ways.
  if (out.size() > 1) out.erase(0);
  return out;
}

}  // namespace stillmap::tool
