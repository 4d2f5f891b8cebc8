#include "stillmap/checkpoint/migration/internal/record_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/vmm/base/file_size_limit.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::migration {
namespace {

// The path may lead to anything, and must not block whoever opens it.
constexpr int lock_open_flags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
// Of deletions, each between the opening and the locking of the file.
constexpr int max_lock_attempts = 100;
constexpr std::string_view explanation =
    "Stillmap keeps this file locked while a process acts on the record of the same name. Do not "
    "delete it.\n";

// For people. Nothing depends on it.
void explain(int fd) noexcept {
  struct stat st {};
  if (::fstat(fd, &st) != 0 || st.st_size != 0) return;
  if (!is_within_file_size_limit(explanation.size())) return;
  (void)!::pwrite(fd, explanation.data(), explanation.size(), 0);
}

}  // namespace

result<record_lock> record_lock::take(std::string path) {
  const auto busy = [&path](const char *reason) {
    return checkpoint::in_file(make_error(errc::busy, reason), path);
  };
  for (int attempt = 0; attempt < max_lock_attempts; ++attempt) {
    auto file = fork_closed_fd::open(path.c_str(), O_CREAT | O_RDWR | lock_open_flags, 0600);
    if (file.get() < 0) {
      return make_system_error(errno, "the lock file cannot be opened", path);
    }
    struct stat st {};
    if (::fstat(file.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
      return checkpoint::in_file(make_error(errc::not_supported, "the lock is not a regular file"),
                                 path);
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return busy("another process holds the record");
      return make_system_error(errno, "the record cannot be locked", path);
    }
    if (!file.is_open_at(path.c_str())) continue;
    explain(file.get());
    return record_lock(std::move(path), std::move(file));
  }
  return busy("the lock file is deleted again and again");
}

bool record_lock::is_at_path() const noexcept {
  return file_.is_open_at(path_.c_str());
}

bool record_lock::is_taken(const std::string &path) noexcept {
  const owned_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | lock_open_flags));
  return file.get() >= 0 && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace stillmap::migration
