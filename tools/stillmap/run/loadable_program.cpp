#include "tools/stillmap/run/loadable_program.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {
namespace {

bool is_program(const std::string &path) {
  struct stat s {};
  return ::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

outcome<std::string> search(const std::string &name) {
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    return fail(exit_not_found, fmt::format("cannot start {}: no such program", name));
  }
  const char *const path = ::secure_getenv("PATH");
  for (const std::string &folder : split(path != nullptr ? path : "/usr/bin:/bin", ':')) {
    std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_program(candidate)) return candidate;
  }
  return fail(exit_not_found, fmt::format("cannot start {}: no such program in PATH", name));
}

// What the loader reads of an ELF file. A script has none: its interpreter is another program.
std::string reason_of_elf(const std::string &path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char *>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return {};
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "it is a 32-bit program";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + i * sizeof segment));
    if (!file.read(reinterpret_cast<char *>(&segment), sizeof segment)) return {};
    if (segment.p_type == PT_INTERP) return {};
  }
  return "it is linked statically: nothing can be loaded into it";
}

// Why the loader would not load it.
std::string reason_of(const std::string &path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return {};
  if ((s.st_mode & S_ISUID) != 0 && s.st_uid != ::getuid())
    return "it is setuid: the loader ignores LD_PRELOAD";
  if ((s.st_mode & S_ISGID) != 0 && s.st_gid != ::getgid())
    return "it is setgid: the loader ignores LD_PRELOAD";
  if (::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0 && ::getuid() != 0) {
    return "it has file capabilities: the loader ignores LD_PRELOAD";
  }
  return reason_of_elf(path);
}

}  // namespace

outcome<std::string> find_loadable_program(const std::string &name) {
  STILLMAP_ASSIGN_OR_RETURN(std::string path, search(name));
  if (const std::string reason = reason_of(path); !reason.empty()) {
    return fail(exit_refused, fmt::format("cannot run {} on Stillmap: {}", path, reason));
  }
  return path;
}

}  // namespace stillmap::tool
