// stillmap dryrun: runs `hostcuda dryrun`, which is a Python program, with the same arguments.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tools/stillmap/cli/commands.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

namespace fs = std::filesystem;

// Python programs: whether there is the package, and its command.
constexpr const char *find_package =
    "import importlib.util, sys; sys.exit(importlib.util.find_spec('stillmap_hostcuda') is None)";
constexpr const char *run_package =
    "import sys; from stillmap_hostcuda.launcher import main; sys.exit(main())";
// The same, of a folder that is the first argument.
constexpr const char *run_package_in =
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from stillmap_hostcuda.launcher import main; "
    "sys.exit(main())";
constexpr const char *how_to_install =
    "in a checkout of Stillmap, hostcuda/python/wheel.sh makes the package: pip install "
    "out/wheel/stillmap_hostcuda-*.whl";

struct dryrun_options {
  std::vector<std::string> options;  // as they are passed on
  std::vector<std::string> program;
};

bool is_executable(const fs::path &file) {
  std::error_code none;
  return fs::is_regular_file(file, none) && ::access(file.c_str(), X_OK) == 0;
}

fs::path own_folder() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

// Where this command is in bin/ of the Python package stillmap, the packages that are installed beside
// that.
fs::path folder_of_packages() {
  const fs::path package = own_folder().parent_path();
  std::error_code none;
  return fs::exists(package / "__init__.py", none) ? package.parent_path() : fs::path();
}

std::vector<fs::path> folders_of_hostcuda() {
  std::vector<fs::path> out;
  if (const fs::path here = own_folder(); !here.empty()) {
    out.push_back(here);
    out.push_back(here / "../lib/stillmap/hostcuda");
  }
  if (const char *path = ::secure_getenv("PATH"); path != nullptr)
    for (const std::string &folder : split(path, ':'))
      if (!folder.empty()) out.emplace_back(folder);
  return out;
}

// Whether the python3 in PATH has the package. A program may be installed without the folder of its
// scripts in PATH.
bool python_has_package() {
  std::string words[] = {"python3", "-c", find_package};
  char *arguments[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t child = 0;
  if (::posix_spawnp(&child, "python3", nullptr, nullptr, arguments, environ) != 0) return false;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return false;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// The beginning of the command line; empty: there is no hostcuda.
std::vector<std::string> find_hostcuda() {
  const fs::path packages = folder_of_packages();
  std::error_code none;
  if (!packages.empty() && fs::is_directory(packages / "stillmap_hostcuda", none))
    return {"python3", "-c", run_package_in, packages.string()};
  for (const fs::path &folder : folders_of_hostcuda())
    if (const fs::path file = folder / "hostcuda"; is_executable(file)) return {file.string()};
  if (python_has_package()) return {"python3", "-c", run_package};
  return {};
}

outcome<exit_status> run_dryrun(const dryrun_options &o) {
  std::vector<std::string> words = find_hostcuda();
  if (words.empty())
    return fail(exit_not_found,
                fmt::format("the command hostcuda is not beside stillmap, in PATH or in a Python "
                            "package; {}",
                            how_to_install));
  words.emplace_back("dryrun");
  words.insert(words.end(), o.options.begin(), o.options.end());
  words.emplace_back("--");
  words.insert(words.end(), o.program.begin(), o.program.end());
  std::vector<char *> arguments;
  for (std::string &word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::fflush(stdout);
  // The exit status, and what a signal does, are those of the program that takes this one's place.
  ::execvp(arguments[0], arguments.data());
  return fail(exit_failed, fmt::format("cannot start {}: {}", words[0], std::strerror(errno)));
}

// An option that is passed on; its value is checked there.
option &pass_on(command &c, dryrun_options &into, const std::string &name, const std::string &value,
                const std::string &what) {
  option &o = c.texts(name, into.options, value, what);
  o.is_repeated = false;
  o.set = [&into, name](const std::string &text) {
    into.options.push_back(name + "=" + text);
    return std::string();
  };
  return o;
}

void pass_on_flag(command &c, dryrun_options &into, const std::string &name,
                  const std::string &what) {
  pass_on(c, into, name, "", what).set = [&into, name](const std::string &) {
    into.options.push_back(name);
    return std::string();
  };
}

}  // namespace

void add_dryrun_command(command &root) {
  const auto o = std::make_shared<dryrun_options>();
  command &c = root.add(
      "dryrun",
      "Says how much device memory a PyTorch program needs, without a GPU. Runs the program by "
      "hostcuda dryrun, once for each of several allocators; kernels are skipped, so its results "
      "mean nothing.");
  c.ends_with_program = true;
  pass_on(c, *o, "--gpu", "h200|h100|a100|l40s|rtx4090", "the device (default: h200)");
  pass_on(c, *o, "--gpus", "N", "devices, 1 to 31 (default: 1)");
  pass_on(c, *o, "--memory", "SIZE", "memory of each device, in place of the GPU's");
  pass_on(
      c, *o, "--allocator", "native|expandable|async|stillmap|all",
      "PyTorch's native one, its expandable segments, cudaMallocAsync, or Stillmap; may be given "
      "again (default: native and, if it is installed, stillmap)")
      .is_repeated = true;
  pass_on(c, *o, "--stillmap", "LIBRARY",
          "libstillmap_torch.so (default: that of the Python package stillmap, or of the command's "
          "installation)");
  pass_on_flag(c, *o, "--find-least", "also search for the least memory at which the program runs");
  pass_on(c, *o, "--find-batch", "VAR",
          "also search for the largest number that can take the place of {VAR} in the program's "
          "arguments");
  pass_on(c, *o, "--pictures", "FOLDER", "draw memory over time, and the heap at its peak");
  pass_on(c, *o, "--loop-limit", "N",
          "a condition in the device's memory is false N times at one line, then true (default: "
          "256; 0: never)");
  pass_on(c, *o, "--time-limit", "SECONDS", "of one run (default: 600)");
  pass_on(c, *o, "--config", "TEXT", "further settings of hostcuda; may be given again")
      .is_repeated = true;
  pass_on_flag(c, *o, "--json", "print one JSON document");
  c.arguments(o->program, "PROGRAM", "the program and its arguments").required();
  c.notes =
      "hostcuda is found beside this command, in its prefix, in PATH, or in the Python package\n"
      "stillmap-hostcuda, which has the dry run. It is on no index: in a checkout of Stillmap\n"
      "hostcuda/python/wheel.sh makes it. The exit status is that of hostcuda dryrun: 0 if the "
      "program\n"
      "ended well under each allocator, 1 if not, 2 for wrong usage.\n"
      "Example: stillmap dryrun --gpu a100 --allocator all -- python train.py --batch 8\n";
  c.run = [o] { return run_dryrun(*o); };
}

}  // namespace stillmap::tool
