#include "stillmap/allocators/admission/quota_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>

#include "stillmap/vmm/base/file_size_limit.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

constexpr std::size_t events_at = sizeof(quota_table);
constexpr std::size_t file_bytes = events_at + quota_table::max_events * sizeof(quota_record);

struct flock record_lock(short type, std::size_t at, std::size_t bytes) {
  struct flock l = {};
  l.l_type = type;
  l.l_whence = SEEK_SET;
  l.l_start = static_cast<off_t>(at);
  l.l_len = static_cast<off_t>(bytes);
  return l;
}

// Whether a descriptor's description in /proc lists the lock on byte 0 of this file:
// "lock:\t1: OFDLCK  ADVISORY  WRITE -1 00:1a:42 0 0".
bool lists_ledger_lock(const char *path, unsigned long long inode) {
  const std::unique_ptr<FILE, int (*)(FILE *)> in(std::fopen(path, "re"), &std::fclose);
  if (in == nullptr) return false;
  char line[256], wanted[64];
  std::snprintf(wanted, sizeof wanted, ":%llu 0 0\n", inode);
  while (std::fgets(line, sizeof line, in.get()) != nullptr) {
    if (std::strncmp(line, "lock:", 5) == 0 && std::strstr(line, wanted) != nullptr) return true;
  }
  return false;
}

bool holds_ledger_lock(std::uint32_t process, unsigned long long inode) {
  char path[300];
  std::snprintf(path, sizeof path, "/proc/%u/fdinfo", process);
  const std::unique_ptr<DIR, int (*)(DIR *)> in(::opendir(path), &::closedir);
  if (in == nullptr) return false;
  while (const dirent *const e = ::readdir(in.get())) {
    std::snprintf(path, sizeof path, "/proc/%u/fdinfo/%s", process, e->d_name);
    if (lists_ledger_lock(path, inode)) return true;
  }
  return false;
}

}  // namespace

std::size_t quota_file::share_at(std::size_t i) {
  return offsetof(quota_table, shares) + i * sizeof(quota_share);
}

std::size_t quota_file::exchange_at(std::size_t i) {
  return offsetof(quota_table, exchanges) + i * sizeof(quota_exchange);
}

status quota_file::open(const char *path, bool only_own, bool create) {
  // O_NONBLOCK: what has the name may be a FIFO.
  const int flags = O_RDWR | O_NONBLOCK | (create ? O_CREAT : 0) | (only_own ? O_NOFOLLOW : 0);
  file_ = fork_closed_fd::open(path, flags, 0600);
  if (!is_open()) return make_system_error(errno, "the file cannot be opened");
  STILLMAP_RETURN_IF_ERROR(check(only_own, ::geteuid()));
  // A read that updates no access time takes a sixth less. Only the file's owner may ask for that.
  const int status_flags = ::fcntl(file_.get(), F_GETFL);
  [[maybe_unused]] const int quiet = ::fcntl(file_.get(), F_SETFL, status_flags | O_NOATIME);
  // A write beyond the limit would end the process.
  if (is_within_file_size_limit(file_bytes)) return {};
  return make_system_error(EFBIG, "RLIMIT_FSIZE is smaller than the ledger");
}

status quota_file::open_to_read(const char *path, std::uint32_t owner) {
  // O_NONBLOCK: it may be a FIFO, or have a lease.
  file_ = fork_closed_fd::open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY, 0);
  if (!is_open()) return make_system_error(errno, "the file cannot be opened");
  return check(true, owner);
}

status quota_file::check(bool only_own, std::uint32_t owner) const {
  struct stat st = {};
  if (::fstat(file_.get(), &st) != 0)
    return make_system_error(errno, "the file's owner cannot be read");
  if (!S_ISREG(st.st_mode)) return make_error(errc::corrupt, "it is not a regular file");
  if (only_own && (st.st_uid != owner || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0)) {
    return make_system_error(EPERM,
                             "another user owns the file or may write it: remove it, use another "
                             "name, or give the path of a file that you share");
  }
  return {};
}

status quota_file::allocate() const {
  struct stat st = {};
  if (::fstat(file_.get(), &st) != 0)
    return make_system_error(errno, "the file's size cannot be read");
  if (st.st_size == file_bytes) return {};
  if (st.st_size != 0) {
    return make_error(errc::corrupt, "the file is not a quota, or has been truncated",
                      static_cast<std::uint64_t>(st.st_size), file_bytes, error_unit::bytes);
  }
  // With its blocks, so that no later write finds the file system full.
  const int code = ::posix_fallocate(file_.get(), 0, file_bytes);
  return code == 0 ? status() : make_system_error(code, "there is no room for the ledger");
}

status quota_file::read_bytes(void *into, std::size_t bytes, std::size_t at) const {
  ssize_t n = -1;
  do {
    n = ::pread(file_.get(), into, bytes, static_cast<off_t>(at));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(bytes)) return {};
  if (n < 0) return make_system_error(errno, "the ledger cannot be read");
  return make_error(errc::corrupt, "the file is not a quota, or has been truncated",
                    at + static_cast<std::size_t>(n), file_bytes, error_unit::bytes);
}

status quota_file::write_bytes(const void *from, std::size_t bytes, std::size_t at) const {
  ssize_t n = -1;
  do {
    n = ::pwrite(file_.get(), from, bytes, static_cast<off_t>(at));
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(bytes)) return {};
  return make_system_error(n < 0 ? errno : ENOSPC, "the ledger cannot be written");
}

status quota_file::read(quota_table &into, quota_part part) const {
  // One call, unless participants have come since the last one.
  const std::size_t known = std::clamp<std::size_t>(into.header.used, 1, quota_table::max_slots);
  STILLMAP_RETURN_IF_ERROR(read_bytes(&into, share_at(known), 0));
  const quota_header &h = into.header;
  if ((h.magic != quota_table::magic && h.magic != 0) || h.used > quota_table::max_slots) {
    return make_error(errc::corrupt, "the file is not a quota");
  }
  if (h.used > known) {
    STILLMAP_RETURN_IF_ERROR(
        read_bytes(&into.shares[known], share_at(h.used) - share_at(known), share_at(known)));
  }
  for (std::size_t i = 0; i < h.used; ++i) {
    quota_holding &there = into.shares[i].holding;
    if (!there.is_whole()) STILLMAP_RETURN_IF_ERROR(read_holding(i, there));
  }
  if (part == quota_part::grant && !h.may_wait()) return {};
  return read_bytes(into.exchanges.data(), h.used * sizeof(quota_exchange), exchange_at(0));
}

status quota_file::read_holding(std::size_t i, quota_holding &into) const {
  // The owner may write it at the same time, but not as often.
  for (int tries = 0; tries < 1000; ++tries) {
    STILLMAP_RETURN_IF_ERROR(read_bytes(&into, sizeof into, share_at(i)));
    if (into.is_whole()) return {};
  }
  return make_error(errc::corrupt, "a participant's entry in the file is damaged (its index)", i);
}

status quota_file::write_slot(std::size_t i, const quota_share &s, const quota_exchange &e) const {
  STILLMAP_RETURN_IF_ERROR(write_bytes(&e, sizeof e, exchange_at(i)));
  return write_bytes(&s, sizeof s, share_at(i));
}

status quota_file::add_event(quota_header &h, quota_record e) const {
  e.number = h.events++;
  const std::size_t at = events_at + e.number % quota_table::max_events * sizeof e;
  STILLMAP_RETURN_IF_ERROR(write_bytes(&e, sizeof e, at));
  return write_header(h);
}

status quota_file::read_events(const quota_header &h, std::vector<quota_record> &into) const {
  std::vector<quota_record> all(quota_table::max_events);
  STILLMAP_RETURN_IF_ERROR(read_bytes(all.data(), all.size() * sizeof(quota_record), events_at));
  const std::uint64_t first = h.events - std::min<std::uint64_t>(h.events, all.size());
  into.reserve(into.size() + all.size());
  for (std::uint64_t n = first; n < h.events; ++n) {
    const quota_record &e = all[n % all.size()];
    if (e.number == n) into.push_back(e);
  }
  return {};
}

bool quota_file::lock(bool take, std::size_t at) const {
  struct flock l = record_lock(static_cast<short>(take ? F_WRLCK : F_UNLCK), at, 1);
  while (::fcntl(file_.get(), F_OFD_SETLK, &l) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

bool quota_file::is_locked(std::size_t at, std::size_t bytes) const {
  struct flock l = record_lock(F_WRLCK, at, bytes);
  return ::fcntl(file_.get(), F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

int quota_file::find_ledger_holder(std::span<const quota_share> participants) const {
  struct stat st = {};
  if (::fstat(file_.get(), &st) != 0) return 0;
  const auto holder =
      std::find_if(participants.begin(), participants.end(), [&](const quota_share &s) {
        return s.is_taken() && holds_ledger_lock(s.holding.process, st.st_ino);
      });
  return holder == participants.end() ? 0 : static_cast<int>(holder->holding.process);
}

}  // namespace stillmap
