#include "stillmap/checkpoint/image/internal/image_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace stillmap::image {

outcome<aligned_memory> aligned_memory::create(std::size_t bytes) {
  aligned_memory m;
  const std::size_t rounded =
      (std::max<std::size_t>(bytes, 1) + block_bytes - 1) / block_bytes * block_bytes;
  m.memory_.reset(static_cast<std::byte *>(std::aligned_alloc(block_bytes, rounded)));
  if (!m.memory_) {
    return fail(errc::out_of_memory, "image", "no memory for a buffer", part::file, 0, {},
                std::to_string(rounded) + " bytes");
  }
  m.size_ = bytes;
  return m;
}

image_file::image_file(image_file &&o) noexcept
    : calls_(o.calls_), fd_(std::exchange(o.fd_, -1)), direct_(o.direct_.load()) {}

image_file &image_file::operator=(image_file &&o) noexcept {
  if (this == &o) return *this;
  if (fd_ >= 0) calls_->close(fd_);
  calls_ = o.calls_;
  fd_ = std::exchange(o.fd_, -1);
  direct_ = o.direct_.load();
  return *this;
}

image_file::~image_file() {
  if (fd_ >= 0) calls_->close(fd_);
}

outcome<image_file> image_file::open_to_read(file_calls &calls, int directory,
                                             const std::string &name, bool direct) {
  constexpr const char *op = "image::open";
  // Not blocking: somebody may have put a pipe there.
  const int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  int fd = direct ? calls.open_at(directory, name.c_str(), flags | O_DIRECT, 0) : -EINVAL;
  const bool is_direct = fd >= 0;
  if (fd == -EINVAL) fd = calls.open_at(directory, name.c_str(), flags, 0);
  if (fd < 0) return fail_system(-fd, op, "cannot open the file");
  image_file f(calls, fd, is_direct);
  struct stat st {};
  if (const int r = calls.status(fd, &st); r < 0) return fail_system(-r, op, "cannot ask for it");
  if (!S_ISREG(st.st_mode)) {
    return fail(errc::not_supported, op, "no regular file");
  }
  return f;
}

bool image_file::give_up_direct() {
  if (!direct_.exchange(false)) return false;
  return calls_->set_flags(fd_, 0) >= 0;
}

done image_file::write(bytes_view from, std::uint64_t offset) {
  constexpr const char *op = "image::write";
  while (!from.empty()) {
    const long n = calls_->write_at(fd_, from.data(), from.size(), offset);
    // A device of larger blocks, or memory that is not aligned.
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return fail_system(static_cast<int>(-n), op, "cannot write", offset);
    if (n == 0) return fail_system(ENOSPC, op, "nothing is written any more", offset);
    // What is left must still begin at a block; the rest of a torn one is written twice.
    const auto whole = direct_ ? static_cast<std::size_t>(n) / block_bytes * block_bytes
                               : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return fail_system(EIO, op, "less than a block is written at a time", offset);
    }
    from = from.subspan(std::min(whole, from.size()));
    offset += whole;
  }
  return {};
}

done image_file::read_aligned(std::span<std::byte> to, std::uint64_t offset) {
  constexpr const char *op = "image::read";
  while (!to.empty()) {
    const long n = calls_->read_at(fd_, to.data(), to.size(), offset);
    if (n == -EINVAL && give_up_direct()) continue;
    if (n < 0) return fail_system(static_cast<int>(-n), op, "cannot read", offset);
    if (n == 0) {
      return fail(errc::corrupt, op, "the file ends before", part::file, offset, "the end",
                  std::to_string(to.size()) + " bytes more");
    }
    const auto whole = direct_ && static_cast<std::size_t>(n) < to.size()
                           ? static_cast<std::size_t>(n) / block_bytes * block_bytes
                           : static_cast<std::size_t>(n);
    if (whole == 0 && !give_up_direct()) {
      return fail(errc::corrupt, op, "the file ends within a block", part::file, offset,
                  std::to_string(n), "4096");
    }
    to = to.subspan(whole);
    offset += whole;
  }
  return {};
}

done image_file::read(std::span<std::byte> to, std::uint64_t offset) {
  if (!direct_ || (is_aligned(to.data()) && to.size() % block_bytes == 0)) {
    return read_aligned(to, offset);
  }
  const std::size_t rounded = (to.size() + block_bytes - 1) / block_bytes * block_bytes;
  const auto room = aligned_memory::create(rounded);
  if (!room) return tl::unexpected<failure>(room.error());
  if (const auto ok = read_aligned(room->bytes(), offset); !ok) return ok;
  std::memcpy(to.data(), room->bytes().data(), to.size());
  return {};
}

done image_file::sync_data() {
  if (const int r = calls_->sync_data(fd_); r < 0) {
    return fail_system(-r, "image::write", "cannot make sure that it is written");
  }
  return {};
}

done image_file::truncate(std::uint64_t bytes) {
  if (const int r = calls_->truncate(fd_, bytes); r < 0) {
    return fail_system(-r, "image::write", "cannot set the size of the file", bytes);
  }
  return {};
}

outcome<std::uint64_t> image_file::size() const {
  struct stat st {};
  if (const int r = calls_->status(fd_, &st); r < 0) {
    return fail_system(-r, "image::open", "cannot ask for its size");
  }
  return static_cast<std::uint64_t>(st.st_size);
}

void image_file::drop_cached() {
  // Only advice: where it is refused, the page cache answers.
  static_cast<void>(calls_->drop_cached(fd_));
}

}  // namespace stillmap::image
