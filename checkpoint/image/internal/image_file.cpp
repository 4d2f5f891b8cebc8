#include "stillmap/checkpoint/image/internal/image_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "stillmap/checkpoint/image/internal/image_error.h"
#include "stillmap/checkpoint/image/internal/wire.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

result<aligned_memory> aligned_memory::create(std::size_t bytes) {
  aligned_memory m;
  const std::size_t rounded = to_block(std::max<std::size_t>(bytes, 1));
  m.memory_.reset(static_cast<std::byte *>(std::aligned_alloc(block_bytes, rounded)));
  if (!m.memory_) {
    return make_error(errc::out_of_memory, "image", "no host memory for a buffer", rounded, 0,
                      error_unit::bytes);
  }
  m.size_ = bytes;
  return m;
}

status aligned_memory::grow(std::size_t bytes) {
  if (size_ >= bytes) return {};
  STILLMAP_ASSIGN_OR_RETURN(*this, create(bytes));
  return {};
}

image_file::image_file(image_file &&o) noexcept
    : calls_(o.calls_), fd_(std::exchange(o.fd_, -1)), direct_(o.direct_.load()) {}

image_file::~image_file() {
  if (fd_ >= 0) calls_->close(fd_);
}

result<image_file> image_file::open_to_read(file_calls &calls, int directory,
                                            const std::string &name, bool direct) {
  constexpr const char *op = "image::open";
  // Non-blocking, because the name may lead to a pipe.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int fd = direct ? calls.open_at(directory, name.c_str(), flags | O_DIRECT, 0) : -EINVAL;
  const bool is_direct = fd >= 0;
  if (fd == -EINVAL) fd = calls.open_at(directory, name.c_str(), flags, 0);
  if (fd < 0) return make_system_error(-fd, op, "cannot open the file");
  image_file f(calls, fd, is_direct);
  struct stat st {};
  if (const int r = calls.status(fd, &st); r < 0)
    return make_system_error(-r, op, "cannot read the status of the file");
  if (!S_ISREG(st.st_mode)) {
    return make_error(errc::not_supported, op, "not a regular file");
  }
  return f;
}

bool image_file::give_up_direct() {
  if (!direct_.exchange(false)) return false;
  return calls_->set_flags(fd_, 0) >= 0;
}

status image_file::write(bytes_view from, std::uint64_t offset) {
  constexpr const char *op = "image::write";
  while (!from.empty()) {
    const long n = calls_->write_at(fd_, from.data(), from.size(), offset);
    // EINVAL: a device with larger blocks, or memory that is not aligned.
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return image_system_error(static_cast<int>(-n), op, "cannot write", offset);
    if (n == 0) return image_system_error(ENOSPC, op, "a write stored no bytes", offset);
    // The rest must begin at a block; a block that was written in part is written again.
    const auto whole = direct_ ? static_cast<std::size_t>(n) / block_bytes * block_bytes
                               : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return image_system_error(EIO, op, "a write stored less than a block", offset);
    }
    from = from.subspan(std::min(whole, from.size()));
    offset += whole;
  }
  return {};
}

status image_file::read_aligned(std::span<std::byte> to, std::uint64_t offset) {
  constexpr const char *op = "image::read";
  while (!to.empty()) {
    const long n = calls_->read_at(fd_, to.data(), to.size(), offset);
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return image_system_error(static_cast<int>(-n), op, "cannot read", offset);
    if (n == 0) {
      return image_error(errc::corrupt, op, "the file is too short", part::file, offset,
                         "end of file", std::to_string(to.size()) + " bytes more");
    }
    const auto whole = direct_ && static_cast<std::size_t>(n) < to.size()
                           ? static_cast<std::size_t>(n) / block_bytes * block_bytes
                           : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return image_error(errc::corrupt, op, "the file ends within a block", part::file, offset,
                         std::to_string(n), "4096");
    }
    to = to.subspan(whole);
    offset += whole;
  }
  return {};
}

status image_file::read(std::span<std::byte> to, std::uint64_t offset) {
  if (!direct_ || (is_aligned(to.data()) && to.size() % block_bytes == 0)) {
    return read_aligned(to, offset);
  }
  STILLMAP_ASSIGN_OR_RETURN(const auto room, aligned_memory::create(to_block(to.size())));
  STILLMAP_RETURN_IF_ERROR(read_aligned(room.bytes(), offset));
  std::memcpy(to.data(), room.bytes().data(), to.size());
  return {};
}

status image_file::sync_data() {
  if (const int r = calls_->sync_data(fd_); r < 0) {
    return make_system_error(-r, "image::write", "cannot sync the file's data");
  }
  return {};
}

status image_file::truncate(std::uint64_t bytes) {
  if (const int r = calls_->truncate(fd_, bytes); r < 0) {
    return image_system_error(-r, "image::write", "cannot set the size of the file", bytes);
  }
  return {};
}

result<std::uint64_t> image_file::size() const {
  struct stat st {};
  if (const int r = calls_->status(fd_, &st); r < 0) {
    return make_system_error(-r, "image::open", "cannot read the size of the file");
  }
  return static_cast<std::uint64_t>(st.st_size);
}

void image_file::drop_cached() {
  // Advice only: where it is refused, reads come from the page cache.
  (void)calls_->drop_cached(fd_);
}

}  // namespace stillmap::image
