#include "hostcuda/src/host_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>

namespace hostcuda {
namespace {

std::atomic<std::int64_t> areas_left{0};  // areas that may be taken before the next count
std::atomic<std::int64_t> owed{0};        // areas that are taken but do not exist yet

// Counts the lines of /proc/self/maps. Does not allocate, because malloc may fail at the limit.
std::int64_t areas_now() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::int64_t lines = 0;
  char buffer[16384];
  for (;;) {
    const ssize_t n = read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    lines += std::count(buffer, buffer + n, '\n');
  }
  close(fd);
  return lines;
}

std::size_t read_number(const char *path) {
  std::ifstream in(path);
  std::size_t n = 0;
  return in >> n ? n : 0;
}

}  // namespace

std::uint64_t most_areas() {
  static const std::uint64_t most = [] {
    std::uint64_t allowed = 0;
    std::ifstream in("/proc/sys/vm/max_map_count");
    if (!(in >> allowed) || allowed == 0) allowed = 65530;
    return allowed - allowed / 16;
  }();
  return most;
}

bool take_areas(std::uint64_t n) {
  const auto wanted = static_cast<std::int64_t>(n);
  if (areas_left.fetch_sub(wanted) >= wanted) return true;
  const std::int64_t free = static_cast<std::int64_t>(most_areas()) - areas_now() - owed;
  areas_left = std::max<std::int64_t>(free - wanted, 0);
  return free >= wanted;
}

void spend_areas(std::uint64_t n) {
  areas_left.fetch_sub(static_cast<std::int64_t>(n));
}

void owe_mapping() {
  owed += kAreasOfMapping;
}

void settle_mapping() {
  owed -= kAreasOfMapping;
}

std::size_t host_memory() {
  static const std::size_t all = [] {
    const std::size_t limit = read_number("/sys/fs/cgroup/memory.max");
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
    return limit != 0 ? std::min(limit, pages * page) : pages * page;
  }();
  return all;
}

std::size_t available_host_memory() {
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

}  // namespace hostcuda
