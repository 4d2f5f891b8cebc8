#include "hostcuda/src/memory/host_pages.h"

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
#include <string>

#include "hostcuda/src/counters.h"
#include "hostcuda/src/host_limits.h"
#include "hostcuda/src/machine.h"
#include "hostcuda/src/memory/bytes.h"
#include "hostcuda/src/memory/reclaimer.h"

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

int protection(unsigned access) {
  return ((access & 1U) != 0 ? PROT_READ : 0) | ((access & 2U) != 0 ? PROT_WRITE : 0);
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

void unmap(void *at, std::size_t bytes) {
  syscall(SYS_munmap, at, bytes);
}

// Reserves that range. False: part of it is in use.
bool map_reserved(void *at, std::size_t bytes) {
  void *const got = raw_mmap(at, bytes, PROT_NONE, kReserveFlags | MAP_FIXED_NOREPLACE, -1, 0);
  if (got == at) return true;
  if (got != MAP_FAILED) unmap(got, bytes);  // a hint before Linux 4.17
  return false;
}

// Addresses of a machine whose memory is never accessed: the highest free ones of a range where the kernel
// puts nothing by itself. They are the same in each run of a program, and with them what depends on
// addresses, such as which of two equal free blocks an allocator takes. ThreadSanitizer has that range.
class repeatable_addresses {
 public:
  static bool contains(std::uintptr_t at) { return at >= begin && at < end; }
  // nullptr: there is no such range.
  void *reserve(std::size_t bytes, std::size_t alignment) {
    if (bytes > end - begin) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = free_.highest(whole(bytes), alignment);
    return at && take(*at, bytes) ? reinterpret_cast<void *>(*at) : nullptr;
  }
  // Requires: contains(at). False: part of it is in use.
  bool reserve_at(std::uintptr_t at, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return bytes <= end - at && free_.contains(at, whole(bytes)) && take(at, bytes);
  }
  // Requires: they were reserved here.
  void give_back(std::uintptr_t at, std::size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.add(at, whole(bytes));
  }

 private:
  static constexpr std::uintptr_t begin = 0x2000'0000'0000, end = 0x3000'0000'0000;
  static std::size_t whole(std::size_t bytes) { return round_up(bytes, kGranularity); }
  bool take(std::uintptr_t at, std::size_t bytes) {
    if (!map_reserved(reinterpret_cast<void *>(at), bytes)) return false;
    free_.take(at, whole(bytes));
    return true;
  }

  std::mutex mutex_;
  offset_ranges free_ = [] {
    offset_ranges all;
    all.add(begin, end - begin);
    return all;
  }();
};

// Never destroyed, because destructors of the program may call the driver.
repeatable_addresses &addresses_of_unbacked() {
  static repeatable_addresses *const a = new repeatable_addresses;
  return *a;
}

void *reserve_anywhere(std::size_t bytes, std::size_t alignment) {
  if (!current_settings().backed) {
    if (void *const at = addresses_of_unbacked().reserve(bytes, alignment)) return at;
  }
  const std::size_t slack = alignment > kHostPage ? alignment : 0;
  if (bytes + slack < bytes) return nullptr;
  void *raw = raw_mmap(nullptr, bytes + slack, PROT_NONE, kReserveFlags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = slack == 0 ? start : round_up(start, alignment);
  if (aligned != start) unmap(raw, aligned - start);
  const std::size_t tail = start + bytes + slack - (aligned + bytes);
  if (tail != 0) unmap(reinterpret_cast<void *>(aligned + bytes), tail);
  return reinterpret_cast<void *>(aligned);
}

// Creates a mapping for the driver, excluded from child processes and core files.
char *own_mapping(int fd, std::size_t bytes) {
  void *const at =
      raw_mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  (void)syscall(SYS_madvise, at, bytes, MADV_DONTDUMP);
  (void)syscall(SYS_madvise, at, bytes, MADV_DONTFORK);
  return static_cast<char *>(at);
}

// Writes zeros, which makes the pages resident and up to date, so that one fault can map several of
// them. fallocate() alone does not.
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

// Zeroes an extent in place if it has a populated view.
bool clear(const extent &what) {
  if (what.view == nullptr) return fill_with_zeros(what.fd, what.offset, what.bytes);
  fill_bytes(what.view, 0, 1, what.bytes);
  return true;
}

}  // namespace

void *reserve_range(std::size_t bytes, std::size_t alignment, void *hint) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(hint);
  if (wanted != 0 && wanted % std::max(alignment, kHostPage) == 0) {
    const bool got = repeatable_addresses::contains(wanted)
                         ? addresses_of_unbacked().reserve_at(wanted, bytes)
                         : map_reserved(hint, bytes);
    if (got) return hint;
  }
  return reserve_anywhere(bytes, alignment);
}

void release_range(void *at, std::size_t bytes) {
  unmap(at, bytes);
  const auto begin = reinterpret_cast<std::uintptr_t>(at);
  if (repeatable_addresses::contains(begin)) addresses_of_unbacked().give_back(begin, bytes);
}

bool may_map_extent() {
  return !current_settings().backed || take_areas(kAreasOfMapping);
}

bool map_extent(void *at, const extent &what, unsigned access) {
  if (what.fd < 0 || !current_settings().backed) return true;
  return raw_mmap(at, what.bytes, protection(access), MAP_SHARED | MAP_FIXED, what.fd,
                  what.offset) != MAP_FAILED;
}

bool unmap_range(void *at, std::size_t bytes) {
  if (!current_settings().backed) return true;
  spend_areas(kAreasOfMapping);
  return raw_mmap(at, bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool protect_range(void *at, std::size_t bytes, unsigned access) {
  if (!current_settings().backed) return true;
  return syscall(SYS_mprotect, at, bytes, protection(access)) == 0;
}

void populate_range(void *at, std::size_t bytes) {
  if (!current_settings().backed || current_settings().lazy) return;
  first_touch_timer timer;
  // A read is sufficient: in a shared file mapping a read fault also maps sixteen surrounding pages
  // writable. On an old kernel the call fails and the first copy takes the faults.
  (void)syscall(SYS_madvise, at, bytes, MADV_POPULATE_READ);
}

namespace {

// Releases kept pages, including those in queued jobs, to the host. Returns false if there were
// none.
bool release_kept_pages() {
  finish_later();
  const std::size_t before = available_host_memory();
  for (int i = 0; i <= kMaxDevices; ++i) pages_of(i).drop_kept();
  return available_host_memory() > before;
}

}  // namespace

bool host_can_back(std::size_t bytes) {
  constexpr std::size_t kRecheck = std::size_t{64} << 20;
  static std::atomic<std::size_t> trusted{0};  // bytes to grant before the next check
  std::size_t have = trusted.load();
  while (have >= bytes)
    if (trusted.compare_exchange_weak(have, have - bytes)) return true;
  std::size_t available = available_host_memory();
  if (available < bytes && release_kept_pages()) available = available_host_memory();
  if (available < bytes) {
    static std::atomic<bool> said{false};
    if (!said.exchange(true))
      std::fprintf(stderr,
                   "hostcuda: the host has no memory for %zu more bytes of device memory (%zu "
                   "bytes available); returning out of memory. HOSTCUDA=unbacked needs none.\n",
                   bytes, available);
    return false;
  }
  trusted = std::min(available - bytes, kRecheck);
  return true;
}

bool host_can_touch(std::size_t bytes) {
  // A few bytes can take two host pages.
  return !current_settings().lazy || host_can_back(round_up(bytes, kHostPage) + kHostPage);
}

char *map_view(int fd, std::size_t bytes) {
  if (!current_settings().backed || current_settings().lazy || !take_areas(1)) return nullptr;
  char *const view = own_mapping(fd, bytes);
  if (view != nullptr) populate_range(view, bytes);
  return view;
}

void drop_shared_pages(int fd, char *view, std::size_t bytes) {
  do_later([fd, view, bytes] {
    if (view != nullptr) unmap(view, bytes);
    close(fd);
  });
}

pool_file::~pool_file() {
  if (fd_ >= 0) close(fd_);
}

bool pool_file::take(std::size_t bytes, extent *out) {
  const bool present = current_settings().backed && !current_settings().lazy;
  if (present && !host_can_back(bytes)) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (ftruncate(fd_, static_cast<off_t>(end_ + bytes)) != 0) return false;
  *out = extent{fd_, end_, bytes};
  end_ += bytes;
  return true;
}

void pool_file::give(const extent &what) const {
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(what.offset),
                  static_cast<off_t>(what.bytes));
}

int make_shared_pages(const char *name, std::size_t bytes) {
  const bool present = current_settings().backed && !current_settings().lazy;
  if (present && !host_can_back(bytes)) {
    errno = ENOMEM;
    return -1;
  }
  int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 && errno == EMFILE) {  // queued jobs may release some
    finish_later();
    fd = memfd_create(name, MFD_CLOEXEC);
  }
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
  if (fd_ < 0 || current_settings().lazy) return fd_;
  // Twice the possible size, because of fragmentation. Extents beyond it have no view.
  const std::size_t wanted =
      2 * std::min(round_up(current_settings().machine.device_memory, kGranularity),
                   round_up(host_memory(), kGranularity));
  view_ = own_mapping(fd_, wanted);
  view_bytes_ = view_ != nullptr ? wanted : 0;
  return fd_;
}

extent page_file::extent_locked(std::size_t offset, std::size_t bytes) const {
  const bool seen = offset + bytes <= view_bytes_;
  return extent{fd_, offset, bytes, seen ? view_ + offset : nullptr};
}

bool page_file::take_kept(std::size_t bytes, extent *out) {
  bool dirty = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // Takes the lowest range, zeroed or not, because adjacency saves more than zeroing costs.
    constexpr std::size_t none = ~std::size_t{0};
    const std::size_t clean = clean_.lowest(bytes).value_or(none);
    const std::size_t used = dirty_.lowest(bytes).value_or(none);
    const std::size_t stale = stale_.lowest(bytes).value_or(none);
    const std::size_t at = std::min({clean, used, stale});
    if (at == none) return false;
    dirty = at != clean;
    (at == clean ? clean_ : at == used ? dirty_ : stale_).take(at, bytes);
    *out = extent_locked(at, bytes);
  }
  if (!dirty) return true;
  first_touch_timer timer;
  if (clear(*out)) return true;
  give(*out);
  return false;
}

// Takes the lowest hole that fits, or extends the file. The file stays close to the peak use,
// because CRIU scans all possible pages of the file when it saves the process.
bool page_file::take_fresh_locked(std::size_t bytes, extent *out) {
  constexpr std::size_t step = std::size_t{64} << 20;
  std::size_t offset = end_;
  if (const auto hole = holes_.lowest(bytes)) {
    offset = *hole;
    holes_.take(offset, bytes);
  } else {
    const std::size_t wanted = round_up(end_ + bytes, step);
    if (wanted > length_) {
      if (ftruncate(fd_, static_cast<off_t>(wanted)) != 0) return false;
      length_ = wanted;
    }
    end_ += bytes;
  }
  *out = extent_locked(offset, bytes);
  return true;
}

bool page_file::take(std::size_t bytes, extent *out) {
  *out = extent{-1, 0, bytes};
  if (!current_settings().backed) return true;
  const bool lazy = current_settings().lazy;
  if (!lazy && take_kept(bytes, out)) return true;
  if (!lazy && !host_can_back(bytes)) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (open_locked() < 0 || !take_fresh_locked(bytes, out)) return false;
  }
  // A hole of a file reads as zeros.
  if (lazy || bytes > kFilledWhenTaken) return true;
  if (fill_with_zeros(out->fd, out->offset, bytes)) {
    if (out->view != nullptr) populate_range(out->view, bytes);
    return true;
  }
  release_to_host(out->fd, {out->offset, bytes});
  return false;
}

void page_file::give(const extent &what) {
  if (what.fd < 0) return;
  if (!current_settings().lazy && what.bytes <= kFilledWhenTaken) {
    std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t kept = clean_.bytes() + dirty_.bytes() + stale_.bytes() + clearing_;
    if (what.bytes <= current_settings().keep && kept <= current_settings().keep - what.bytes) {
      const bool idle = dirty_.bytes() == 0;
      dirty_.add(what.offset, what.bytes);
      if (idle) do_later([this] { clear_kept(); });
      return;
    }
  }
  release_to_host(what.fd, {what.offset, what.bytes});
}

// Releases a range to the host.
void page_file::release_to_host(int fd, offset_ranges::range what) {
  (void)fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(what.offset),
                  static_cast<off_t>(what.bytes));
  std::lock_guard<std::mutex> lock(mutex_);
  const offset_ranges::range hole = holes_.add(what.offset, what.bytes);
  if (hole.offset + hole.bytes != end_) return;
  end_ = hole.offset;
  holes_.take(hole.offset, hole.bytes);
}

void page_file::clear_kept() {
  constexpr std::size_t part = 4 * kGranularity;
  for (;;) {
    extent what;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto next = dirty_.take_first(part);
      if (!next) return;
      what = extent_locked(next->offset, next->bytes);
      clearing_ += what.bytes;
    }
    const bool cleared = clear(what);
    if (!cleared) release_to_host(what.fd, {what.offset, what.bytes});
    std::lock_guard<std::mutex> lock(mutex_);
    clearing_ -= what.bytes;
    if (cleared) clean_.add(what.offset, what.bytes);
  }
}

void page_file::drop_kept() {
  for (;;) {
    offset_ranges::range what;
    int fd = -1;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto next = clean_.take_first(~std::size_t{0});
      if (!next) next = dirty_.take_first(~std::size_t{0});
      if (!next) next = stale_.take_first(~std::size_t{0});
      if (!next) return;
      what = *next;
      fd = fd_;
    }
    release_to_host(fd, what);
  }
}

void page_file::share() {
  std::lock_guard<std::mutex> lock(mutex_);
  shared_ = true;
}

// Tests make thousands of machines, and a page costs a millisecond each time that the host provides it.
bool page_file::keep_lowest_locked(std::size_t most) {
  if (view_ == nullptr || shared_) return false;
  const std::size_t kept = std::min({end_, most, view_bytes_});
  if (ftruncate(fd_, static_cast<off_t>(kept)) != 0) return false;
  end_ = length_ = kept;
  clean_.clear();
  dirty_.clear();
  stale_.clear();
  offset_ranges holes;
  std::swap(holes, holes_);
  std::size_t at = 0;
  while (const auto hole = holes.take_first(~std::size_t{0})) {
    if (hole->offset >= kept) break;
    if (hole->offset > at) stale_.add(at, hole->offset - at);
    at = std::min(kept, hole->offset + hole->bytes);
    holes_.add(hole->offset, at - hole->offset);
  }
  if (at < kept) stale_.add(at, kept - at);
  return true;
}

void page_file::reset(std::size_t keep) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (keep != 0 && keep_lowest_locked(keep)) return;
  if (view_ != nullptr) unmap(view_, view_bytes_);
  view_ = nullptr;
  view_bytes_ = 0;
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  end_ = length_ = 0;
  holes_.clear();
  clean_.clear();
  dirty_.clear();
  stale_.clear();
  shared_ = false;
}

page_file &pages_of(int location) {
  static page_file *const files = new page_file[kMaxDevices + 1];
  return files[location];
}

void reset_pages(std::size_t keep) {
  finish_later();
  for (int i = 0; i <= kMaxDevices; ++i) pages_of(i).reset(keep);
}

}  // namespace hostcuda
