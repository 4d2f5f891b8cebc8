#include "stillmap/checkpoint/image/internal/write_queue.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "stillmap/checkpoint/base/block_file.h"
#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/vmm/base/file_size_limit.h"
#include "stillmap/vmm/base/fork_closed_fd.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::image {

struct write_queue::ring {
  io_uring r{};
  bool open = false;
  fork_closed_fd fd;  // r's
  ~ring() {
    r.ring_fd = r.enter_ring_fd =
        fd.release();  // -1 in a forked child, whose number another file may have
    if (open) io_uring_queue_exit(&r);
  }
};

write_queue::write_queue(checkpoint::block_file &file, unsigned depth)
    : file_(file), depth_(depth), slots_(std::make_unique<slot[]>(depth)) {
  // A single write in flight gains nothing from io_uring, nor do writes to the page cache: the
  // kernel would copy in worker threads.
  if (depth < 2 || !file.direct() || !file.files().may_use_ring()) return;
  auto made = std::make_unique<ring>();
  if (io_uring_queue_init(depth, &made->r, 0) != 0) return;
  made->open = true;
  made->fd = fork_closed_fd::adopt(made->r.ring_fd);
  ring_ = std::move(made);
}

write_queue::~write_queue() {
  while (busy_ != 0 && ring_) {
    if (const auto ok = wait_for_one(); !ok && ring_lost_) break;
  }
}

result<unsigned> write_queue::free_slot() {
  for (;;) {
    for (unsigned i = 0; i < depth_; ++i) {
      if (slots_[i].left.empty()) return i;
    }
    STILLMAP_RETURN_IF_ERROR(wait_for_one());
  }
}

status write_queue::write(unsigned i, bytes_view from, std::uint64_t offset) {
  // The error of a file that is too large is the same either way.
  if (!ring_ || !is_within_file_size_limit(offset + from.size())) return file_.write(from, offset);
  slots_[i] = {from, offset};
  ++busy_;
  return submit(i);
}

status write_queue::submit(unsigned i) {
  io_uring_sqe *const sqe = io_uring_get_sqe(&ring_->r);
  const slot &s = slots_[i];
  // The ring has an entry for each slot. Without one, the write is made synchronously.
  int r = -EBUSY;
  if (sqe != nullptr) {
    io_uring_prep_write(sqe, file_.fd(), s.left.data(), static_cast<unsigned>(s.left.size()),
                        s.offset);
    io_uring_sqe_set_data64(sqe, i);
    do {
      r = io_uring_submit(&ring_->r);
    } while (r == -EINTR || r == -EAGAIN);
  }
  if (r > 0) return {};
  const bytes_view left = std::exchange(slots_[i].left, {});
  --busy_;
  if (sqe != nullptr) {
    // The entry is queued but was not submitted; it is never submitted again.
    return checkpoint::system_error_at(r == 0 ? EIO : -r, "io_uring accepts no write", s.offset);
  }
  return file_.write(left, s.offset);
}

status write_queue::wait_for_one() {
  io_uring_cqe *cqe = nullptr;
  int r = 0;
  do {
    r = io_uring_wait_cqe(&ring_->r, &cqe);
  } while (r == -EINTR || r == -EAGAIN);
  if (r != 0) {
    ring_lost_ = true;
    return make_system_error(-r, "cannot wait for io_uring");
  }
  const auto i = static_cast<unsigned>(cqe->user_data);
  slot &s = slots_[i];
  const int n = file_.files().ring_wrote(cqe->res, s.left.size());
  io_uring_cqe_seen(&ring_->r, cqe);
  if (n == -EINTR || n == -EAGAIN) return submit(i);
  const slot ended = std::exchange(s, {});
  --busy_;
  if (n > 0 && static_cast<std::size_t>(n) >= ended.left.size()) return {};
  if (n < 0 && n != -EINVAL) {
    return checkpoint::system_error_at(-n, "cannot write", ended.offset);
  }
  // A short write, or EINVAL: checkpoint::block_file::write writes the rest, and handles both.
  const std::size_t whole = static_cast<std::size_t>(std::max(n, 0)) / block_bytes * block_bytes;
  return file_.write(ended.left.subspan(whole), ended.offset + whole);
}

status write_queue::finish() {
  while (busy_ != 0) {
    STILLMAP_RETURN_IF_ERROR(wait_for_one());
  }
  return {};
}

}  // namespace stillmap::image
