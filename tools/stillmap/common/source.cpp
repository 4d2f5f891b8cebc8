#include "tools/stillmap/common/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace stillmap::tool {
namespace {

std::string why(int number) {
  return std::generic_category().message(number);
}

// Present on nearly every Linux machine, at least one of them on each that can build Stillmap.
constexpr const char *usual_large_files[] = {
    "/usr/lib/gcc/*/*/cc1plus",
    "/usr/libexec/gcc/*/*/cc1plus",
    "/usr/bin/bazel*",
    "/usr/bin/python3*",
    "/usr/lib/*/libLLVM*.so*",
    "/usr/lib*/libLLVM*.so*",
    "/usr/lib/*/libicudata.so*",
    "/usr/lib/*/libpython3*.so*",
    "/usr/lib/locale/locale-archive",
    "/usr/lib/*/libcrypto.so*",
    "/usr/lib/*/libc.so.6",
    "/usr/lib*/libc.so.6",
    "/usr/bin/bash",
};

}  // namespace

std::string largest_file(const std::vector<std::string> &patterns) {
  std::string best;
  std::uint64_t best_bytes = 0;
  for (const std::string &pattern : patterns) {
    glob_t found = {};
    if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
      for (std::size_t i = 0; i < found.gl_pathc; ++i) {
        struct stat s = {};
        const char *path = found.gl_pathv[i];
        if (::stat(path, &s) != 0 || !S_ISREG(s.st_mode) || ::access(path, R_OK) != 0) continue;
        if (static_cast<std::uint64_t>(s.st_size) <= best_bytes) continue;
        best_bytes = static_cast<std::uint64_t>(s.st_size);
        best = path;
      }
    }
    ::globfree(&found);
  }
  return best;
}

outcome<byte_source> byte_source::over(owned_fd fd, std::string name, std::uint64_t at_least) {
  byte_source source;
  source.fd_ = std::move(fd);
  source.name_ = std::move(name);
  source.at_least_ = at_least;
  struct stat s = {};
  if (::fstat(source.fd_.get(), &s) != 0) {
    return fail(exit_failed, fmt::format("cannot read {}: {}", source.name_, why(errno)));
  }
  if (S_ISDIR(s.st_mode)) {
    return fail(exit_usage, fmt::format("cannot read {}: it is a directory", source.name_));
  }
  source.regular_ = S_ISREG(s.st_mode);
  if (source.regular_) {
    const off_t begin = ::lseek(source.fd_.get(), 0, SEEK_CUR);
    source.begin_ = source.at_ = begin > 0 ? static_cast<std::uint64_t>(begin) : 0;
    const auto size = static_cast<std::uint64_t>(s.st_size);
    source.bytes_ = size > source.begin_ ? size - source.begin_ : 0;
  } else if (at_least != 0) {
    return fail(exit_usage, fmt::format("--at-least repeats a file, but {} can be read only once",
                                        source.name_));
  }
  return source;
}

outcome<byte_source> byte_source::open(const std::string &file, std::uint64_t at_least) {
  if (file == "-") {
    return over(owned_fd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)), "standard input", at_least);
  }
  owned_fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    return fail(errno == ENOENT   ? exit_not_found
                : errno == EACCES ? exit_refused
                                  : exit_failed,
                fmt::format("cannot read {}: {}", file, why(errno)));
  }
  return over(std::move(fd), file, at_least);
}

outcome<byte_source> byte_source::open_default(std::uint64_t at_least) {
  const std::string file =
      largest_file({std::begin(usual_large_files), std::end(usual_large_files)});
  return open(file.empty() ? "/proc/self/exe" : file, at_least);
}

outcome<std::size_t> byte_source::read(std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const ssize_t n = regular_ ? ::pread(fd_.get(), into.data() + done, into.size() - done,
                                         static_cast<off_t>(at_))
                               : ::read(fd_.get(), into.data() + done, into.size() - done);
    if (n < 0) {
      if (errno == EINTR) continue;
      return fail(exit_failed, fmt::format("reading {} failed after {} bytes: {}", name_,
                                           delivered_ + done, why(errno)));
    }
    if (n == 0) {
      const bool again = regular_ && at_ != begin_ && delivered_ + done < at_least_;
      if (!again) break;
      at_ = begin_;
      continue;
    }
    done += static_cast<std::size_t>(n);
    at_ += static_cast<std::uint64_t>(n);
  }
  delivered_ += done;
  return done;
}

void byte_source::rewind() {
  at_ = begin_;
  delivered_ = 0;
}

}  // namespace stillmap::tool
