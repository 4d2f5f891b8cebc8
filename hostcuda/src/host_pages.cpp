#include "host_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

#include "counters.h"
#include "host_areas.h"
#include "machine_set.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace hostcuda {
namespace {

void *raw_mmap(void *at, std::size_t bytes, int prot, int flags, int fd, std::size_t offset) {
  const long r = syscall(SYS_mmap, at, bytes, prot, flags, fd, static_cast<long>(offset));
  return r == -1 ? MAP_FAILED : reinterpret_cast<void *>(r);
}

class first_touch_timer {
 public:
  ~first_touch_timer() {
    const auto spent = std::chrono::steady_clock::now() - start_;
    counters().first_touch_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count());
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void *reserve_anywhere(std::size_t bytes, std::size_t alignment) {
  const std::size_t slack = alignment > kHostPage ? alignment : 0;
  if (bytes + slack < bytes) return nullptr;
  void *raw = raw_mmap(nullptr, bytes + slack, PROT_NONE, kReserveFlags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = slack == 0 ? start : round_up(start, alignment);
  if (aligned != start) release_range(raw, aligned - start);
  const std::size_t tail = start + bytes + slack - (aligned + bytes);
  if (tail != 0) release_range(reinterpret_cast<void *>(aligned + bytes), tail);
  return reinterpret_cast<void *>(aligned);
}

std::size_t read_number(const char *path) {
  std::ifstream in(path);
  std::size_t n = 0;
  return in >> n ? n : 0;
}

// What the kernel says it can still hand out, the smaller of the machine and the memory cgroup.
std::size_t available_now() {
  std::size_t available = static_cast<std::size_t>(-1);
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    std::size_t kib = 0;
    if (!(in >> kib)) break;
    std::getline(in, unit);
    if (key == "MemAvailable:") {
      available = kib * 1024;
      break;
    }
  }
  const std::size_t limit = read_number("/sys/fs/cgroup/memory.max");
  if (limit != 0) {
    const std::size_t used = read_number("/sys/fs/cgroup/memory.current");
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

// Writes zeros: that makes the pages present and up to date, so that one fault can later map many
// of them, which fallocate() alone does not.
bool fill_with_zeros(int fd, std::size_t offset, std::size_t bytes) {
  static const char zeros[kGranularity] = {};
  first_touch_timer timer;
  while (bytes != 0) {
    const ssize_t n = pwrite(fd, zeros, std::min(bytes, sizeof zeros), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    offset += static_cast<std::size_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
  return true;
}

}  // namespace

void *reserve_range(std::size_t bytes, std::size_t alignment, void *hint) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(hint);
  if (wanted != 0 && wanted % std::max(alignment, kHostPage) == 0) {
    void *got = raw_mmap(hint, bytes, PROT_NONE, kReserveFlags | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == hint) return got;
    if (got != MAP_FAILED) release_range(got, bytes);  // kernels before 4.17 take it as a hint
  }
  return reserve_anywhere(bytes, alignment);
}

void release_range(void *at, std::size_t bytes) {
  syscall(SYS_munmap, at, bytes);
}

bool map_extent(void *at, const extent &what) {
  if (what.fd < 0 || !current_settings().backed) return true;
  if (!take_areas(2)) return false;  // the mapping, and the rest of the reservation behind it
  return raw_mmap(at, what.bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, what.fd, what.offset) !=
         MAP_FAILED;
}

bool unmap_range(void *at, std::size_t bytes) {
  if (!current_settings().backed) return true;
  spend_areas(2);
  return raw_mmap(at, bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool protect_range(void *at, std::size_t bytes, unsigned access) {
  if (!current_settings().backed) return true;
  const int prot = ((access & 1U) != 0 ? PROT_READ : 0) | ((access & 2U) != 0 ? PROT_WRITE : 0);
  return syscall(SYS_mprotect, at, bytes, prot) == 0;
}

void populate_range(void *at, std::size_t bytes) {
  if (!current_settings().backed || current_settings().lazy) return;
  first_touch_timer timer;
  // Reading is enough: in a shared file mapping a read fault maps the surrounding pages writable
  // too, sixteen at a time. An old kernel refuses and the first copy pays.
  (void)syscall(SYS_madvise, at, bytes, MADV_POPULATE_READ);
}

bool host_can_back(std::size_t bytes) {
  constexpr std::size_t kHeadroom = std::size_t{512} << 20;
  constexpr std::size_t kRecheck = std::size_t{64} << 20;
  static std::atomic<std::size_t> trusted{0};  // may be handed out before looking again
  std::size_t have = trusted.load();
  while (have >= bytes)
    if (trusted.compare_exchange_weak(have, have - bytes)) return true;
  const std::size_t available = available_now();
  if (available < kHeadroom || available - kHeadroom < bytes) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
      std::fprintf(stderr,
                   "hostcuda: this machine cannot back %zu more bytes of device memory (%zu "
                   "available); answering out of memory. HOSTCUDA=unbacked needs none.\n",
                   bytes, available);
    return false;
  }
  trusted = std::min(available - kHeadroom - bytes, kRecheck);
  return true;
}

bool host_can_touch(std::size_t bytes) {
  // Rounded up: a few bytes take a page, or two.
  return !current_settings().lazy || host_can_back(round_up(bytes, kHostPage) + kHostPage);
}

int make_shared_pages(const char *name, std::size_t bytes) {
  const bool present = current_settings().backed && !current_settings().lazy;
  if (present && !host_can_back(bytes)) {
    errno = ENOMEM;
    return -1;
  }
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0 && (!present || fill_with_zeros(fd, 0, bytes)))
    return fd;
  close(fd);
  errno = ENOMEM;
  return -1;
}

int page_file::open_locked() {
  if (fd_ >= 0) return fd_;
  fd_ = memfd_create("hostcuda-device", MFD_CLOEXEC);
  // The size is only a bound on offsets; pages cost memory when written.
  if (fd_ >= 0 && ftruncate(fd_, off_t{1} << 46) != 0) {
    close(fd_);
    fd_ = -1;
  }
  return fd_;
}

bool page_file::take_spare_locked(std::size_t bytes, extent *out) {
  if (spare_.empty() || spare_.front().bytes < bytes) return false;
  extent &oldest = spare_.front();
  *out = extent{oldest.fd, oldest.offset, bytes};
  oldest.offset += bytes;
  oldest.bytes -= bytes;
  if (oldest.bytes == 0) spare_.pop_front();
  spare_bytes_ -= bytes;
  return true;
}

bool page_file::take(std::size_t bytes, extent *out) {
  *out = extent{-1, 0, bytes};
  if (!current_settings().backed) return true;
  const bool lazy = current_settings().lazy;
  if (!lazy) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (take_spare_locked(bytes, out)) {
      lock.unlock();
      if (fill_with_zeros(out->fd, out->offset, bytes)) return true;
      give(*out);
      return false;
    }
  }
  if (!lazy && !host_can_back(bytes)) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    out->fd = open_locked();
    if (out->fd < 0) return false;
    // The lowest hole that fits, looking at a bounded number: holes are nearly always of one page.
    int tries = 64;
    auto it = holes_.begin();
    while (it != holes_.end() && it->second < bytes && --tries > 0) ++it;
    if (it != holes_.end() && it->second >= bytes) {
      out->offset = it->first;
      const std::size_t left = it->second - bytes;
      holes_.erase(it);
      if (left != 0) holes_.emplace(out->offset + bytes, left);
    } else {
      out->offset = end_;
      end_ += bytes;
    }
  }
  // A hole of a file reads as zeros, and give() leaves nothing but holes.
  if (lazy || fill_with_zeros(out->fd, out->offset, bytes)) return true;
  give(*out);
  return false;
}

void page_file::give(const extent &what) {
  if (what.fd < 0) return;
  if (!current_settings().lazy) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (what.bytes <= kSpareLimit - spare_bytes_) {
      spare_.push_back(what);
      spare_bytes_ += what.bytes;
      return;
    }
  }
  // Really back to the host: the machine needs it.
  (void)fallocate(what.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(what.offset), static_cast<off_t>(what.bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  auto at = holes_.emplace(what.offset, what.bytes).first;
  if (const auto next = std::next(at);
      next != holes_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    holes_.erase(next);
  }
  if (at != holes_.begin()) {
    if (const auto before = std::prev(at); before->first + before->second == at->first) {
      before->second += at->second;
      holes_.erase(at);
      at = before;
    }
  }
  if (at->first + at->second == end_) {
    end_ = at->first;
    holes_.erase(at);
  }
}

void page_file::reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  end_ = 0;
  holes_.clear();
  spare_.clear();
  spare_bytes_ = 0;
}

page_file &pages_of(int location) {
  static page_file *const files = new page_file[kMaxDevices + 1];
  return files[location];
}

void reset_pages() {
  for (int i = 0; i <= kMaxDevices; ++i) pages_of(i).reset();
}

}  // namespace hostcuda
