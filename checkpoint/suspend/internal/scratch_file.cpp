#include "stillmap/checkpoint/suspend/internal/scratch_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/file_size_limit.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

tl::unexpected<error> file_error(const char *reason, std::uint64_t bytes, int code = errno) {
  error e = make_system_error(code, reason).value();
  e.value = bytes;
  e.unit = error_unit::bytes;
  return tl::unexpected(std::move(e));
}

// On file systems without O_TMPFILE, creates a named file and unlinks it at once.
fork_closed_fd open_unnamed(const std::string &directory, int flags) {
  auto fd = fork_closed_fd::open(directory.c_str(), O_TMPFILE | O_RDWR | flags, 0600);
  if (fd.get() >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
  std::string name = directory + "/.stillmap-XXXXXX";
  auto named = fork_closed_fd::create([&] { return ::mkostemp(name.data(), O_CLOEXEC | flags); });
  if (named.get() >= 0) ::unlink(name.c_str());
  return named;
}

// A file in tmpfs is host memory, so the host must have room for it.
status check_room_of_memory_file(int fd, std::size_t bytes) {
  struct statfs of = {};
  if (::fstatfs(fd, &of) != 0 || (of.f_type != TMPFS_MAGIC && of.f_type != RAMFS_MAGIC)) return {};
  return check_host_room(bytes,
                         "the directory is host memory (tmpfs) without room for the contents: name "
                         "one on a disk");
}

// Calls use(offset, checksum) for each block of a range, until one returns false.
template <class Use>
void each_block(const std::byte *from, std::size_t bytes, std::size_t offset, Use use) {
  for (std::size_t done = 0; done < bytes; done += scratch_file::block_bytes) {
    const std::size_t n = std::min(bytes - done, scratch_file::block_bytes);
    if (!use(offset + done, XXH3_64bits(from + done, n))) return;
  }
}

}  // namespace

result<scratch_file> scratch_file::create(const std::string &directory, std::size_t bytes) {
  fork_closed_fd fd = open_unnamed(directory, O_DIRECT);
  const bool direct = fd.get() >= 0 || errno != EINVAL;  // EINVAL: tmpfs before Linux 6.5
  if (!direct) fd = open_unnamed(directory, 0);
  const auto about_directory = [&](const char *reason) {
    return tl::unexpected(file_error(reason, bytes).value().about(directory));
  };
  if (fd.get() < 0) return about_directory("a file cannot be created in the directory");
  // Allocated now, so that a full disk is an error before any memory was unmapped.
  if (!is_within_file_size_limit(bytes)) {
    errno = EFBIG;
    return about_directory("the file would exceed the limit on the size of files");
  }
  STILLMAP_RETURN_IF_ERROR(check_room_of_memory_file(fd.get(), bytes));
  if (bytes != 0 && ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 &&
      errno != EOPNOTSUPP) {
    return about_directory("disk space cannot be allocated");
  }
  return scratch_file(std::move(fd), direct, (bytes + block_bytes - 1) / block_bytes);
}

status scratch_file::write(const std::byte *from, std::size_t bytes, std::size_t offset) {
  each_block(from, bytes, offset, [&](std::size_t at, std::uint64_t checksum) {
    checksums_[at / block_bytes] = checksum;
    return true;
  });
  while (bytes != 0) {
    const ssize_t n = ::pwrite(fd_.get(), from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return file_error("the file cannot be written", offset, n < 0 ? errno : ENOSPC);
    }
    from += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::size_t>(n);
  }
  return {};
}

status scratch_file::read(std::byte *to, std::size_t bytes, std::size_t offset) const {
  const std::byte *const contents = to;
  const std::size_t begin = offset, size = bytes;
  while (bytes != 0) {
    const ssize_t n = ::pread(fd_.get(), to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return file_error("the file cannot be read", offset);
    if (n == 0) {
      return make_error(errc::corrupt, "the file ends early", offset, 0, error_unit::bytes);
    }
    to += n;
    bytes -= static_cast<std::size_t>(n);
    offset += static_cast<std::size_t>(n);
  }
  status outcome;
  each_block(contents, size, begin, [&](std::size_t at, std::uint64_t checksum) {
    if (checksums_[at / block_bytes] == checksum) return true;
    outcome = make_error(errc::corrupt, "the disk did not return what was written to it", at, 0,
                         error_unit::bytes);
    return false;
  });
  return outcome;
}

}  // namespace stillmap::checkpoint
