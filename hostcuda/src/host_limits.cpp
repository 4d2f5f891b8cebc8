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

std::size_t read_number(const std::string &path) {
  std::ifstream in(path);
  std::size_t n = 0;
  return in >> n ? n : 0;
}

// The sum of these lines of memory.stat.
std::size_t sum_of(const std::string &path, const char *first, const char *second) {
  std::ifstream in(path);
  std::size_t sum = 0, n = 0;
  for (std::string key; in >> key >> n;)
    if (key == first || key == second) sum += n;
  return sum;
}

// Calls each(limit, used) for the memory control group of the process and for all groups around it, of
// either version, where they have a limit. The page cache is not used: the kernel gives it up.
template <class Each>
void each_group(Each each) {
  std::ifstream in("/proc/self/cgroup");  // "4:memory:/path" or "0::/path"
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
    const bool old = controllers.find(",memory,") != std::string::npos;
    if (!old && controllers != ",,") continue;
    const std::string top = old ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      const std::string folder = top + path + '/', stat = folder + "memory.stat";
      const std::size_t limit =
          read_number(folder + (old ? "memory.limit_in_bytes" : "memory.max"));
      if (limit != 0) {
        const std::size_t used =
            read_number(folder + (old ? "memory.usage_in_bytes" : "memory.current"));
        const std::size_t cached = old ? sum_of(stat, "total_inactive_file", "total_active_file")
                                       : sum_of(stat, "inactive_file", "active_file");
        each(limit, used - std::min(used, cached));
      }
      if (path.empty()) break;
    }
  }
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
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    std::size_t bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * page;
    each_group([&](std::size_t limit, std::size_t) { bytes = std::min(bytes, limit); });
    return bytes;
  }();
  return all;
}

std::size_t available_host_memory() {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  constexpr std::size_t kLeftToMachine = 512 * kMiB, kLeftToGroup = 64 * kMiB;
  const auto beyond = [](std::size_t bytes, std::size_t left) {
    return bytes - std::min(bytes, left);
  };
  std::size_t available = static_cast<std::size_t>(-1);
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    std::size_t kib = 0;
    if (!(in >> kib)) break;
    std::getline(in, unit);
    if (key == "MemAvailable:") {
      available = beyond(kib * 1024, kLeftToMachine);
      break;
    }
  }
  each_group([&](std::size_t limit, std::size_t used) {
    available = std::min(available, beyond(beyond(limit, used), kLeftToGroup));
  });
  return available;
}

}  // namespace hostcuda
