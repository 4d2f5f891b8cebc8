// The host memory behind the simulated devices: address ranges, files of pages, and the time it
// takes to make pages present. Knows nothing of CUDA's rules.
//
// A device is one memfd. A page allocation is an extent of it: neighbouring allocations tend to be
// neighbouring extents, so that the kernel merges adjacent mappings and a process stays under
// vm.max_map_count (65,530). Raw system calls, because a sanitizer's interceptor would try to
// shadow a reservation of terabytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "hostcuda/src/memory/offset_ranges.h"

namespace hostcuda {

constexpr std::size_t kHostPage = 4096;
constexpr std::size_t kGranularity = std::size_t{2} << 20;

inline std::size_t round_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

// Bytes of a file. fd -1: only the books (unbacked).
struct extent {
  int fd = -1;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  char *view = nullptr;  // the driver's own mapping of it; nullptr: there is none
};

// Address space with nothing behind it, at `hint` when that is free, elsewhere otherwise. nullptr:
// there is no such room. `alignment` is a power of two.
void *reserve_range(std::size_t bytes, std::size_t alignment, void *hint);
void release_range(void *at, std::size_t bytes);

// Whether a mapping may be made, now or later: not where the host would soon refuse (too many of
// them, host_areas.h).
bool may_map_extent();
// Replaces reserved address space by the pages of `what`. `access` as below. False: the host
// refused.
bool map_extent(void *at, const extent &what, unsigned access);
// Puts the reservation back.
bool unmap_range(void *at, std::size_t bytes);
// `access` as CUmemAccess_flags: 0 none, 1 read, 3 read and write.
bool protect_range(void *at, std::size_t bytes, unsigned access);
// Fills the page tables, so that the first touch runs at the speed of the second; not where the
// machine is lazy.
void populate_range(void *at, std::size_t bytes);

// A file of its own for memory that other processes may import; zero filled. -1: the host is out of
// memory (errno ENOMEM) or of descriptors.
int make_shared_pages(const char *name, std::size_t bytes);

// The driver's own mapping of such a file, filled in; nullptr: no room for it, or no bytes at all.
char *map_view(int fd, std::size_t bytes);
// Gives both back, in the driver's own time. `view` may be nullptr.
void drop_shared_pages(int fd, char *view, std::size_t bytes);

// Whether the host has `bytes` to give. Prints one line the first time it has not.
bool host_can_back(std::size_t bytes);

// Whether copies and fills may touch `bytes` of device memory: where the machine is lazy, that is
// when the host pays for it.
bool host_can_touch(std::size_t bytes);

// The pages of one device. Thread-safe; take() and give() do their work outside the lock.
//
// Released pages stay present, up to settings::keep, and are zeroed in the background: neither is
// anything that a GPU's program would wait for. The lowest go first, so that pages that are
// created together are neighbours.
class page_file {
 public:
  // Zeroed, and present unless the machine is lazy. False: the host cannot back it.
  bool take(std::size_t bytes, extent *out);
  void give(const extent &what);
  // Gives all that is kept back to the host.
  void drop_kept();
  // Forgets everything; nothing may be mapped any more.
  void reset();

 private:
  int open_locked();
  extent extent_locked(std::size_t offset, std::size_t bytes) const;
  bool take_kept(std::size_t bytes, extent *out);
  bool take_fresh_locked(std::size_t bytes, extent *out);
  void give_back(int fd, offset_ranges::range what);
  void clear_kept();

  std::mutex mutex_;
  int fd_ = -1;
  char *view_ = nullptr;  // all of the file that can have bytes, in one piece
  std::size_t view_bytes_ = 0;
  std::size_t end_ = 0;          // first offset never used
  std::size_t length_ = 0;       // of the file
  offset_ranges holes_;          // below it, and not present
  offset_ranges clean_, dirty_;  // present and nobody's: zero, and still to be zeroed
  std::size_t clearing_ = 0;     // bytes on their way from one to the other
};

// One per device; the last one is the host's.
page_file &pages_of(int location);
void reset_pages();

}  // namespace hostcuda
