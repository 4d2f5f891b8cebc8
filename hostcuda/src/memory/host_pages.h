// Host memory of the simulated devices: address ranges, files of pages, and page population. Does
// not implement rules of CUDA.
//
// Each device has one memfd, and a page allocation is an extent of it. Consecutive allocations tend
// to be neighbouring extents, so that the kernel merges adjacent mappings and a process stays below
// vm.max_map_count (65,530). Memory calls are raw system calls, because the interceptors of
// sanitizers would try to shadow a reservation of terabytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "hostcuda/src/memory/offset_ranges.h"

namespace hostcuda {

constexpr std::size_t kHostPage = 4096;
constexpr std::size_t kGranularity = std::size_t{2} << 20;
// Larger extents are filled where they are mapped: a program that creates one only to leave less
// memory to others pays nothing for it.
constexpr std::size_t kFilledWhenTaken = std::size_t{1} << 30;

// Of each device's pages, so many at most stay resident for the next machine.
constexpr std::size_t kKeptAtReset = std::size_t{256} << 20;

inline std::size_t round_up(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

// A range of a file. fd -1: unbacked, without bytes.
struct extent {
  int fd = -1;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  char *view = nullptr;  // the driver's own mapping of the range, or nullptr
};

// Reserves inaccessible address space, at `hint` if that is free, otherwise elsewhere. Returns
// nullptr if there is no free range. `alignment` is a power of two.
void *reserve_range(std::size_t bytes, std::size_t alignment, void *hint);
void release_range(void *at, std::size_t bytes);

// Takes the areas of one mapping that is made now or later. Returns false near vm.max_map_count
// (host_limits.h).
bool may_map_extent();
// Maps the pages of `what` over reserved address space, with `access` as for protect_range().
// Returns false if the system call fails.
bool map_extent(void *at, const extent &what, unsigned access);
// Replaces a mapping by inaccessible reserved address space.
bool unmap_range(void *at, std::size_t bytes);
// Sets the access rights: CUmemAccess_flags (0 none, 1 read, 3 read and write).
bool protect_range(void *at, std::size_t bytes, unsigned access);
// Fills the page tables, so that the first access takes no page faults. Does nothing on a lazy
// machine.
void populate_range(void *at, std::size_t bytes);

// Creates a zero-filled memfd for memory that other processes may import. Returns -1 if the host is
// out of memory (errno ENOMEM) or out of descriptors.
int make_shared_pages(const char *name, std::size_t bytes);

// Maps such a file for the driver and populates the mapping. Returns nullptr if that fails, or
// on a lazy or unbacked machine.
char *map_view(int fd, std::size_t bytes);
// Releases the file and its view in the background. `view` may be nullptr.
void drop_shared_pages(int fd, char *view, std::size_t bytes);

// The memfd of a pool that other processes may import. Chunks are extents of it, so that one
// descriptor shares chunks that are created later, too. Offsets are never reused.
class pool_file {
 public:
  explicit pool_file(int fd) : fd_(fd) {}  // owns `fd`; -1: imported and unbacked
  pool_file(const pool_file &) = delete;
  pool_file &operator=(const pool_file &) = delete;
  ~pool_file();

  int fd() const { return fd_; }
  // Appends zeroed pages. Returns false if the host is out of memory. Thread-safe.
  bool take(std::size_t bytes, extent *out);
  // Releases pages to the host. Importers that still map them read zeros.
  void give(const extent &what) const;

 private:
  const int fd_;
  std::mutex mutex_;
  std::size_t end_ = 0;
};

// Whether the host has `bytes` of free memory. Prints one line the first time that it has not.
bool host_can_back(std::size_t bytes);

// Whether copies and fills may touch `bytes` of device memory. On a lazy machine, touching
// allocates host memory.
bool host_can_touch(std::size_t bytes);

// The pages of one device. Thread-safe. take() and give() populate and zero outside the lock.
//
// Released pages stay resident, up to settings::keep, and are zeroed in the background. The lowest
// offsets are reused first, so that pages created together are neighbours.
class page_file {
 public:
  // Takes zeroed pages, resident unless the machine is lazy or they exceed kFilledWhenTaken.
  // Returns false if the host is out of memory.
  bool take(std::size_t bytes, extent *out);
  void give(const extent &what);
  // Releases all kept pages to the host.
  void drop_kept();
  // Another process may map this file: no later machine gets its pages.
  void share();
  // Releases all but the lowest `keep` bytes, for a new machine. Requires: no page is mapped.
  void reset(std::size_t keep);

 private:
  int open_locked();
  extent extent_locked(std::size_t offset, std::size_t bytes) const;
  bool take_kept(std::size_t bytes, extent *out);
  bool take_fresh_locked(std::size_t bytes, extent *out);
  void release_to_host(int fd, offset_ranges::range what);
  void clear_kept();
  bool keep_lowest_locked(std::size_t most);

  std::mutex mutex_;
  int fd_ = -1;
  char *view_ = nullptr;  // mapping of the whole file
  std::size_t view_bytes_ = 0;
  std::size_t end_ = 0;          // first unused offset
  std::size_t length_ = 0;       // of the file
  offset_ranges holes_;          // below end_ and not resident
  offset_ranges clean_, dirty_;  // resident and free: zeroed, and not zeroed yet
  std::size_t clearing_ = 0;     // bytes being zeroed, in neither of the two
  offset_ranges stale_;          // resident, of an earlier machine: zeroed when taken
  bool shared_ = false;
};

// The page file of a device, or of the host (kHostLocation).
page_file &pages_of(int location);
// For a new machine. Of each device `keep` bytes stay resident: 0 unless they are so on both machines.
void reset_pages(std::size_t keep);

}  // namespace hostcuda
