// stillmap run: a program that nobody changed, on Stillmap's memory.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "stillmap/checkpoint/control/audit.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/run_program.h"
#include "tools/stillmap/common/text.h"
#include "tools/stillmap/run/driver_limits.h"
#include "tools/stillmap/run/loadable_program.h"
#include "tools/stillmap/run/program_report.h"
#include "tools/stillmap/run/program_share.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

constexpr const char *library_name = "libstillmap_preload.so";
constexpr const char *service_name = "libstillmap_preload_service.so";

struct run_options {
  std::uint64_t limit = 0;
  program_share share;
  std::string allocator, tag, address, stats, record, ipc, audit;
  bool control = false, explain = false, quiet = false;
  std::vector<std::string> program;
};

// Beside the command where it is built or installed.
outcome<std::string> find_library() {
  if (const char *const named = ::secure_getenv("STILLMAP_PRELOAD_LIBRARY");
      named != nullptr && *named != 0) {
    return std::string(named);
  }
  std::error_code none;
  const fs::path here = fs::read_symlink("/proc/self/exe", none).parent_path();
  std::vector<fs::path> folders{here / "../lib", here / "../lib64", here / "../preload", here};
  // Debian's libraries are in a folder of the machine's.
  for (const auto &entry : fs::directory_iterator(here / "../lib", none)) {
    folders.push_back(entry.path());
  }
  for (const fs::path &folder : folders) {
    for (const fs::path &candidate : {folder / library_name, folder / "stillmap" / library_name}) {
      if (fs::exists(candidate, none)) return fs::canonical(candidate, none).string();
    }
  }
  return fail(exit_not_found,
              fmt::format("{} is not beside this command; STILLMAP_PRELOAD_LIBRARY=path says where "
                          "it is",
                          library_name));
}

// A folder that goes with all that is in it.
class temporary_folder {
 public:
  static outcome<temporary_folder> create() {
    std::error_code none;
    std::string path = (fs::temp_directory_path(none) / "stillmap-run-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) {
      return fail(exit_failed,
                  fmt::format("cannot make {}: {}", path, std::generic_category().message(errno)));
    }
    return temporary_folder(std::move(path));
  }
  temporary_folder(temporary_folder &&other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  temporary_folder &operator=(temporary_folder &&) = delete;
  ~temporary_folder() {
    std::error_code none;
    if (!path_.empty()) fs::remove_all(path_, none);
  }
  const std::string &path() const { return path_; }

 private:
  explicit temporary_folder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// The preload loads it only once the program allocates.
outcome<void> check_service(const std::string &library) {
  std::error_code none;
  const fs::path service = fs::path(library).parent_path() / service_name;
  if (fs::exists(service, none)) return {};
  return fail(exit_not_found,
              fmt::format("{} is missing: it belongs beside {}", service.string(), library_name));
}

// With absolute paths, as the program may change its folder.
outcome<std::string> check_audit(const run_options &o) {
  std::vector<std::string> targets = split(o.audit, ',');
  for (std::string &t : targets) {
    if (!t.empty() && t != "journald" && !t.starts_with("journald:")) t = fs::absolute(t).string();
  }
  std::string all = join(targets, ",");
  STILLMAP_RETURN_IF_ERROR(control::open_audit_log(all));
  return all;
}

outcome<std::vector<std::string>> variables_of(const run_options &o, const std::string &reports,
                                               const driver_limits &limits) {
  STILLMAP_ASSIGN_OR_RETURN(const std::string library, find_library());
  STILLMAP_RETURN_IF_ERROR(check_service(library));
  std::string preload = "LD_PRELOAD=" + library;
  // What is there already is loaded behind ours, which asks it first.
  if (const char *const others = ::secure_getenv("LD_PRELOAD"); others != nullptr && *others != 0) {
    preload += std::string(":") + others;
  }
  std::vector<std::string> out{preload, "STILLMAP_PRELOAD_STATS=" + reports + "/%p"};
  if (o.limit != 0) out.push_back(fmt::format("STILLMAP_PRELOAD_LIMIT={}", o.limit));
  if (!limits.variable.empty()) out.push_back(limits.variable);
  if (!o.allocator.empty()) out.push_back("STILLMAP_PRELOAD_ALLOCATOR=" + o.allocator);
  program_share share = o.share;
  share.maximum = o.limit;
  STILLMAP_ASSIGN_OR_RETURN(const auto shares, variables_of(share));
  out.insert(out.end(), shares.begin(), shares.end());
  if (!o.tag.empty()) out.push_back("STILLMAP_PRELOAD_TAG=" + o.tag);
  if (!o.address.empty()) out.push_back("STILLMAP_PRELOAD_ADDRESS=" + o.address);
  if (o.control) out.emplace_back("STILLMAP_PRELOAD_CONTROL=1");
  STILLMAP_ASSIGN_OR_RETURN(const std::string audit, check_audit(o));
  if (!audit.empty()) out.push_back("STILLMAP_AUDIT=" + audit);
  if (!o.ipc.empty()) out.push_back(fmt::format("STILLMAP_PRELOAD_IPC={:d}", o.ipc == "on"));
  if (!o.record.empty()) out.push_back("STILLMAP_RECORD=" + fs::absolute(o.record).string());
  return out;
}

outcome<void> save_stats(const std::string &file, const program_report &r) {
  std::ofstream to(file);
  to << "[\n";
  for (std::size_t i = 0; i < r.documents.size(); ++i)
    to << (i == 0 ? "" : ",\n") << r.documents[i];
  to << "]\n";
  if (!to.flush()) return fail(exit_failed, fmt::format("cannot write {}", file));
  return {};
}

void print_report(const run_options &o, int status, const program_report &r) {
  if (o.quiet) return;
  if (r.documents.empty()) {
    // A program writes what it did at its end, which a signal leaves it no time for.
    fmt::print(
        stderr, "stillmap: {} {} and {}\n", o.program[0], end_text(status),
        WIFSIGNALED(status) ? "could not say what it allocated" : "allocated no device memory");
    return;
  }
  fmt::print(stderr, "stillmap: {} {}\n{}", o.program[0], end_text(status), describe(r));
  if (o.explain)
    fmt::print(stderr, "stillmap: functions that allocate, as the program found them\n{}",
               explain(r));
}

outcome<void> check_address(const std::string &text) {
  const std::string digits = text.starts_with("0x") ? text.substr(2) : text;
  const bool is_number =
      !digits.empty() && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  if (text.empty() || is_number) return {};
  return fail(exit_usage,
              fmt::format("--address: '{}' is no address in hexadecimal digits, such as "
                          "0x180000000000",
                          text));
}

outcome<exit_status> run_run(const run_options &o) {
  STILLMAP_RETURN_IF_ERROR(check_address(o.address));
  STILLMAP_ASSIGN_OR_RETURN(const std::string program, find_loadable_program(o.program[0]));
  STILLMAP_ASSIGN_OR_RETURN(const auto reports, temporary_folder::create());
  const driver_limits limits = read_driver_limits();
  STILLMAP_ASSIGN_OR_RETURN(const auto variables, variables_of(o, reports.path(), limits));
  for (const std::string &line : limits.lines) {
    if (!o.quiet) fmt::print(stderr, "stillmap: {}\n", line);
  }
  STILLMAP_ASSIGN_OR_RETURN(const int status, run_program(o.program, variables));
  const program_report r = read_reports(reports.path());
  print_report(o, status, r);
  if (!o.stats.empty()) STILLMAP_RETURN_IF_ERROR(save_stats(o.stats, r));
  // The status is the program's own, as of a shell.
  return static_cast<exit_status>(WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                                      : WEXITSTATUS(status));
}

}  // namespace

void add_run_command(command &root) {
  auto [c, o] = root.add(
      "run", &run_run,
      "Runs a CUDA program that nobody changed on Stillmap's memory. What it allocates on a device "
      "is served by Stillmap, all else by the driver. The exit status is the program's, or 128 and "
      "the number of the signal that ended it; one of those below if the program was not started.");
  c.ends_with_program = true;
  c.size("--limit", o.limit,
         "the most memory the program gets, on each device; less where the driver limits its "
         "control group (CUDA's MPS v3), as NVML says");
  c.text(
      "--share", o.share.quota, "QUOTA[:LIMIT]",
      "take part in a shared quota of the device: programs that do ask each other for memory. The "
      "limit is that of all of them, where nobody takes part yet (default: the device's memory); "
      "--limit is the program's own maximum");
  c.number("--priority", o.share.priority, INT_MIN, INT_MAX, "N",
           "it is served before those of lower priority (default: 0)")
      .with("--share");
  c.size("--minimum", o.share.minimum, "what it gets whatever others hold").with("--share");
  c.text("--allocator", o.allocator, "stillmap|driver",
         "who serves the program's memory; driver: limit, figures and report work as with "
         "stillmap, to compare both (default: stillmap)");
  c.text("--tag", o.tag, "TAG", "the tag of its memory (default: program)");
  c.flag("--control", o.control,
         "obey an operator: stillmap task list, suspend, resume, snapshot, restore");
  c.text("--audit", o.audit, "FILE|journald",
         "record each request of an operator, as a line of JSON or in systemd's journal; both, "
         "with a comma between them")
      .with("--control");
  c.text("--address", o.address, "HEX",
         "where the addresses of its memory should begin (default with --control: 0x140000000000, "
         "so that a program that is started again can be restored)");
  c.text("--ipc", o.ipc, "on|off",
         "whether other processes can map its memory, by CUDA's IPC (default: where that costs "
         "nothing)");
  c.text("--stats", o.stats, "FILE", "write what its processes did, as JSON");
  c.text("--record", o.record, "FILE", "record its requests as a trace, for stillmap trace replay");
  c.flag("--explain", o.explain, "say who serves each function that allocates, and why");
  c.flag("-q,--quiet", o.quiet, "say nothing at the end");
  c.arguments(o.program, "PROGRAM", "the program and its arguments").required();
  c.notes = "docs/programs.md says what is served, and how functions are found.\n";
}

}  // namespace stillmap::tool
