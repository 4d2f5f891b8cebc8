#include "python/src/paths.h"

#include <cerrno>
#include <cstdio>

namespace stillmap::python {

status write_file(const char *operation, const std::string &path, const std::string &contents) {
  std::FILE *const file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr)
    return make_system_error(errno, operation, "the file cannot be opened", path);
  const bool written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  const int write_error = errno;
  if (std::fclose(file) != 0 || !written) {
    return make_system_error(written ? errno : write_error, operation, "the file cannot be written",
                             path);
  }
  return {};
}

}  // namespace stillmap::python
