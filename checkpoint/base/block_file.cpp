#include "stillmap/checkpoint/base/block_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "stillmap/checkpoint/base/aligned_memory.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {

block_file::block_file(block_file &&o) noexcept
    : files_(o.files_), fd_(std::exchange(o.fd_, -1)), direct_(o.direct_.load()) {}

block_file::~block_file() {
  if (fd_ >= 0) files_->close(fd_);
}

result<block_file> block_file::open_to_read(file_system &files, int directory,
                                            const std::string &name, bool direct) {
  const operation_scope scope("block_file::open_to_read");
  // Non-blocking, because the name may lead to a pipe.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int fd = direct ? files.open_at(directory, name.c_str(), flags | O_DIRECT, 0) : -EINVAL;
  const bool is_direct = fd >= 0;
  if (fd == -EINVAL) fd = files.open_at(directory, name.c_str(), flags, 0);
  if (fd < 0) return make_system_error(-fd, "cannot open the file");
  block_file f(files, fd, is_direct);
  struct stat st {};
  if (const int r = files.status(fd, &st); r < 0)
    return make_system_error(-r, "cannot read the status of the file");
  if (!S_ISREG(st.st_mode)) {
    return make_error(errc::not_supported, "not a regular file");
  }
  return f;
}

bool block_file::give_up_direct() {
  if (!direct_.exchange(false)) return false;
  return files_->set_flags(fd_, 0) >= 0;
}

status block_file::write(std::span<const std::byte> from, std::uint64_t offset) {
  const operation_scope scope("block_file::write");
  while (!from.empty()) {
    const long n = files_->write_at(fd_, from.data(), from.size(), offset);
    // EINVAL: a device with larger blocks, or memory that is not aligned.
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return system_error_at(static_cast<int>(-n), "cannot write", offset);
    if (n == 0) return system_error_at(ENOSPC, "a write stored no bytes", offset);
    // The rest must begin at a block; a block that was written in part is written again.
    const auto whole = direct_ ? static_cast<std::size_t>(n) / io_block_bytes * io_block_bytes
                               : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return system_error_at(EIO, "a write stored less than a block", offset);
    }
    from = from.subspan(std::min(whole, from.size()));
    offset += whole;
  }
  return {};
}

status block_file::read_aligned(std::span<std::byte> to, std::uint64_t offset) {
  while (!to.empty()) {
    const long n = files_->read_at(fd_, to.data(), to.size(), offset);
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return system_error_at(static_cast<int>(-n), "cannot read", offset);
    if (n == 0) {
      return file_error(errc::corrupt, "the file is too short", "", offset, "end of file",
                        std::to_string(to.size()) + " bytes more");
    }
    const auto whole = direct_ && static_cast<std::size_t>(n) < to.size()
                           ? static_cast<std::size_t>(n) / io_block_bytes * io_block_bytes
                           : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return file_error(errc::corrupt, "the file ends within a block", "", offset,
                        std::to_string(n), "4096");
    }
    to = to.subspan(whole);
    offset += whole;
  }
  return {};
}

status block_file::read(std::span<std::byte> to, std::uint64_t offset) {
  const operation_scope scope("block_file::read");
  if (!direct_ || (is_aligned(to.data()) && to.size() % io_block_bytes == 0)) {
    return read_aligned(to, offset);
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto room, aligned_memory::create(whole_blocks(to.size())));
  STILLMAP_RETURN_IF_ERROR(read_aligned(room.bytes(), offset));
  std::memcpy(to.data(), room.bytes().data(), to.size());
  return {};
}

status block_file::sync_data() {
  const operation_scope scope("block_file::sync_data");
  if (const int r = files_->sync_data(fd_); r < 0) {
    return make_system_error(-r, "cannot sync the file's data");
  }
  return {};
}

status block_file::truncate(std::uint64_t bytes) {
  const operation_scope scope("block_file::truncate");
  if (const int r = files_->truncate(fd_, bytes); r < 0) {
    return system_error_at(-r, "cannot set the size of the file", bytes);
  }
  return {};
}

result<std::uint64_t> block_file::size() const {
  const operation_scope scope("block_file::size");
  struct stat st {};
  if (const int r = files_->status(fd_, &st); r < 0) {
    return make_system_error(-r, "cannot read the size of the file");
  }
  return static_cast<std::uint64_t>(st.st_size);
}

void block_file::drop_cached() {
  // Advice only: where it is refused, reads come from the page cache.
  (void)files_->drop_cached(fd_);
}

}  // namespace stillmap::checkpoint
