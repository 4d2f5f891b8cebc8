#include "python/src/paths.h"

#include <cerrno>
#include <cstdio>

#include "stillmap/vmm/base/operation.h"

namespace stillmap::python {

status write_file(const char *operation, const std::string &path, const std::string &contents) {
  const operation_scope scope(operation);
  std::FILE *const file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return make_system_error(errno, "the file cannot be opened", path);
  const bool written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  const int write_error = errno;
  if (std::fclose(file) != 0 || !written) {
    return make_system_error(written ? errno : write_error, "the file cannot be written", path);
  }
  return {};
}

}  // namespace stillmap::python
