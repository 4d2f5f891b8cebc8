#include <algorithm>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "stillmap/vmm/driver/search_paths.h"

namespace stillmap::driver_search {
namespace {

namespace fs = std::filesystem;

fs::path folder_of_executable() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

// The folder of the file that holds this code: a shared libstillmap, a Python module, the program.
// By the kernel: the dynamic linker knows a program, and a library that was opened by a relative path,
// by a name that says nothing once the current directory is another one.
fs::path folder_of_this_library() {
  const auto here = reinterpret_cast<std::uintptr_t>(&folder_of_this_library);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) != 2) continue;
    if (here < begin || here >= end) continue;
    const std::size_t path = line.find('/');
    return path == std::string::npos ? fs::path() : fs::path(line.substr(path)).parent_path();
  }
  return {};
}

// The Python package that a module in `folder` belongs to, or a command in its bin/; empty: none.
fs::path python_package_of(const fs::path &folder) {
  for (const fs::path &candidate : {folder, folder.parent_path()}) {
    std::error_code none;
    if (fs::exists(candidate / "__init__.py", none)) return candidate;
  }
  return {};
}

// Bazel's runfiles: <workspace>/<simulator>/libcuda.so.1, whatever the workspace is called.
void add_runfiles(std::vector<std::string> &out, const fs::path &folder) {
  std::error_code none;
  for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    const fs::path candidate = at->path() / STILLMAP_SIMULATOR / soname;
    std::error_code missing;
    if (fs::exists(candidate, missing)) out.push_back(candidate.string());
  }
}

}  // namespace

std::vector<std::string> system_candidates() {
  return {
      soname,  // LD_LIBRARY_PATH, ld.so.cache, the default folders
      std::string("/usr/lib/wsl/lib/") + soname,
      std::string("/usr/lib/x86_64-linux-gnu/") + soname,
      std::string("/usr/lib/aarch64-linux-gnu/") + soname,
      std::string("/usr/lib64/") + soname,
      std::string("/usr/lib/") + soname,
      std::string("/usr/local/nvidia/lib64/") + soname,
      std::string("/run/opengl-driver/lib/") + soname,
  };
}

std::vector<std::string> simulator_candidates() {
  if (const char *given = ::secure_getenv(STILLMAP_SIMULATOR_VARIABLE);
      given != nullptr && *given != '\0') {
    return {given};  // named and missing is an error, not a reason to look elsewhere
  }
  std::vector<std::string> out;
  // The kernel's paths have no symbolic links, so that ".." is what it looks like. One path may be had in
  // several ways.
  const auto add = [&](const fs::path &path) {
    std::string text = path.lexically_normal().string();
    if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(std::move(text));
  };
  for (const fs::path &folder : {folder_of_this_library(), folder_of_executable()}) {
    if (folder.empty()) continue;
    const fs::path installed = fs::path("stillmap") / STILLMAP_SIMULATOR / soname;
    add(folder / installed);             // lib/
    add(folder / "../lib" / installed);  // bin/
#ifdef STILLMAP_LIBDIR                   // "lib64", "lib/x86_64-linux-gnu"
    add(folder / ".." / STILLMAP_LIBDIR / installed);
#endif
    add(folder / ".." / STILLMAP_SIMULATOR / soname);  // bazel-bin/tools/
    if (const fs::path package = python_package_of(folder); !package.empty()) {
      add(package.parent_path() / "stillmap_" STILLMAP_SIMULATOR "/lib" / soname);
    }
  }
  if (const char *runfiles = ::secure_getenv("RUNFILES_DIR")) add_runfiles(out, runfiles);
  std::error_code none;
  const fs::path executable = fs::read_symlink("/proc/self/exe", none);
  if (!executable.empty()) add_runfiles(out, executable.string() + ".runfiles");
#ifdef STILLMAP_SIMULATOR_DIR
  add(fs::path(STILLMAP_SIMULATOR_DIR) / soname);
#endif
  return out;
}

std::string simulator_advice() {
  if (python_package_of(folder_of_this_library()).empty()) return {};
  return "for Python, in a checkout of Stillmap: " STILLMAP_SIMULATOR
         "/python/wheel.sh && pip install out/wheel/stillmap_" STILLMAP_SIMULATOR "-*.whl";
}

}  // namespace stillmap::driver_search
