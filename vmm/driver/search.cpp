#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "stillmap/vmm/driver/search_paths.h"

namespace stillmap::driver_search {
namespace {

namespace fs = std::filesystem;

constexpr const char *soname = "libcuda.so.1";

fs::path folder_of_executable() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

// The folder of the file that holds this code: a shared libstillmap, a Python module, the program.
fs::path folder_of_this_library() {
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void *>(&folder_of_this_library), &info) == 0) return {};
  if (info.dli_fname == nullptr) return {};
  std::error_code none;
  return fs::absolute(info.dli_fname, none).parent_path();
}

// Bazel's runfiles: <workspace>/hostcuda/libcuda.so.1, whatever the workspace is called.
void add_runfiles(std::vector<std::string> &out, const fs::path &folder) {
  std::error_code none;
  for (fs::directory_iterator at(folder, none), end; !none && at != end; at.increment(none)) {
    const fs::path candidate = at->path() / "hostcuda" / soname;
    std::error_code missing;
    if (fs::exists(candidate, missing)) out.push_back(candidate.string());
  }
}

}  // namespace

std::string as_path(std::string file) {
  return file.find('/') == std::string::npos ? "./" + file : file;
}

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

std::vector<std::string> hostcuda_candidates() {
  if (const char *given = std::getenv("STILLMAP_HOSTCUDA"); given != nullptr && *given != '\0') {
    return {as_path(given)};  // named and missing is an error, not a reason to look elsewhere
  }
  std::vector<std::string> out;
  for (const fs::path &folder : {folder_of_this_library(), folder_of_executable()}) {
    if (folder.empty()) continue;
    out.push_back((folder / "stillmap/hostcuda" / soname).string());         // lib/
    out.push_back((folder / "../lib/stillmap/hostcuda" / soname).string());  // bin/
#ifdef STILLMAP_LIBDIR  // "lib64", "lib/x86_64-linux-gnu"
    out.push_back((folder / ".." / STILLMAP_LIBDIR / "stillmap/hostcuda" / soname).string());
#endif
    out.push_back((folder / "../hostcuda" / soname).string());  // bazel-bin/tools/
  }
  if (const char *runfiles = std::getenv("RUNFILES_DIR")) add_runfiles(out, runfiles);
  std::error_code none;
  const fs::path executable = fs::read_symlink("/proc/self/exe", none);
  if (!executable.empty()) add_runfiles(out, executable.string() + ".runfiles");
#ifdef STILLMAP_HOSTCUDA_INSTALL_DIR
  out.push_back(std::string(STILLMAP_HOSTCUDA_INSTALL_DIR) + "/" + soname);
#endif
  return out;
}

}  // namespace stillmap::driver_search
