#include "stillmap/checkpoint/base/host_room.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/owned_fd.h"

namespace stillmap::checkpoint {
namespace {

// The files of a memory control group. Where there is a limit of more than one kind, each counts:
// past memory.high a process is not killed, but hardly runs.
struct group_files {
  std::string_view file_system;                   // as /proc/self/mountinfo names it
  std::array<std::string_view, 2> limits;         // each a number of bytes
  std::string_view limit_of_ancestors;            // a line of memory.stat, for groups out of sight
  std::string_view usage;                         // bytes, page cache included
  std::array<std::string_view, 3> reclaimable{};  // lines of memory.stat
};
constexpr group_files version_1{"cgroup",
                                {"memory.limit_in_bytes", {}},
                                "hierarchical_memory_limit",
                                "memory.usage_in_bytes",
                                {"total_inactive_file", "total_active_file", {}}};
constexpr group_files version_2{"cgroup2",
                                {"memory.max", "memory.high"},
                                {},
                                "memory.current",
                                {"inactive_file", "active_file", "slab_reclaimable"}};

// All of a small file; empty if it cannot be read.
std::string contents_of(const std::string &path) {
  std::string out;
  const owned_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> part;
  for (;;) {
    const ssize_t n = fd.get() < 0 ? 0 : ::read(fd.get(), part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return out;
    out.append(part.data(), static_cast<std::size_t>(n));
  }
}

// Cuts off and returns the front of `text` up to a separator, which is dropped.
std::string_view cut(std::string_view &text, char separator) {
  const std::string_view front = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(front.size() + 1, text.size()));
  return front;
}

std::string_view next_word(std::string_view &line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  return cut(line, ' ');
}

// Empty where the text is no number ("max").
std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t n = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  return failed == std::errc() && end != text.data() ? std::optional(n) : std::nullopt;
}

// The number behind `key` in lines "key number ...".
std::optional<std::uint64_t> number_behind(std::string_view key, std::string_view text) {
  while (!key.empty() && !text.empty()) {
    std::string_view line = cut(text, '\n');
    if (next_word(line) == key) return number_of(next_word(line));
  }
  return std::nullopt;
}

// Whether a list "cpu,memory" names it.
bool lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    if (cut(list, ',') == name) return true;
  }
  return false;
}

std::uint64_t left_of(std::uint64_t limit, std::uint64_t used) {
  return limit > used ? limit - used : 0;
}

void take_smaller(host_room &room, std::uint64_t bytes, const std::string &limit) {
  if (bytes < room.bytes) room = {bytes, limit};
}

// One group: `folder` as the process sees it, without the root.
void look_at_group(host_room &room, const std::string &root, const std::string &folder,
                   const group_files &files) {
  const auto usage = number_of(contents_of(root + folder + std::string(files.usage)));
  if (!usage) return;
  const std::string stat = folder + "memory.stat", statistics = contents_of(root + stat);
  std::uint64_t reclaimable = 0;
  for (const std::string_view key : files.reclaimable) {
    reclaimable += number_behind(key, statistics).value_or(0);
  }
  const std::uint64_t used = left_of(*usage, reclaimable);
  for (const std::string_view name : files.limits) {
    if (name.empty()) continue;
    const std::string file = folder + std::string(name);
    const auto limit = number_of(contents_of(root + file));
    if (limit) take_smaller(room, left_of(*limit, used), file);
  }
  if (const auto limit = number_behind(files.limit_of_ancestors, statistics)) {
    take_smaller(room, left_of(*limit, used), stat);
  }
}

// The group of this process: "/user.slice/job". Lines "4:memory:/path" for version 1, "0::/path" for
// version 2.
std::string_view own_group(std::string_view groups, const group_files &files) {
  while (!groups.empty()) {
    std::string_view line = cut(groups, '\n');
    cut(line, ':');
    const std::string_view controllers = cut(line, ':');
    const bool mine = &files == &version_2 ? controllers.empty() : lists(controllers, "memory");
    if (mine) return line;
  }
  return "/";
}

// The group of this process, and all around it, in the hierarchy whose group `top` is mounted.
void look_at_groups(host_room &room, const std::string &root, std::string_view top,
                    const std::string &mount_point, std::string_view group,
                    const group_files &files) {
  if (top == "/") top = {};
  // What a namespace hides, or is mounted elsewhere, is not below the mount point: it alone is known.
  const bool shown = group.starts_with(top) && group.substr(top.size()).starts_with('/') &&
                     group.find("/..") == std::string_view::npos;
  group = shown ? group.substr(top.size()) : std::string_view();
  while (!group.empty() && group.back() == '/') group.remove_suffix(1);
  for (;;) {
    look_at_group(room, root, mount_point + std::string(group) + '/', files);
    if (group.empty()) return;
    group = group.substr(0, group.rfind('/'));
  }
}

// Each line of mountinfo: id, parent, device, root, mount point, options, optional fields, "-", type,
// source, options of the file system.
void look_at_all_groups(host_room &room, const std::string &root) {
  const std::string mounts = contents_of(root + "/proc/self/mountinfo");
  const std::string groups = contents_of(root + "/proc/self/cgroup");
  for (std::string_view left = mounts; !left.empty();) {
    std::string_view before = cut(left, '\n');
    const std::size_t dash = before.find(" - ");
    if (dash == std::string_view::npos) continue;
    std::string_view after = before.substr(dash + 3);
    for (int i = 0; i < 3; ++i) next_word(before);
    const std::string_view top = next_word(before);
    const std::string mount_point(next_word(before));
    const std::string_view type = next_word(after);
    next_word(after);
    if (type == version_2.file_system) {
      look_at_groups(room, root, top, mount_point, own_group(groups, version_2), version_2);
    } else if (type == version_1.file_system && lists(next_word(after), "memory")) {
      look_at_groups(room, root, top, mount_point, own_group(groups, version_1), version_1);
    }
  }
}

// For other memory of the process, so that it does not die of the next small allocation.
constexpr std::uint64_t spare_bytes = std::uint64_t{64} << 20;
// 32 B for each page of 4 KiB: entries of page tables, and a driver's list of pinned pages.
constexpr std::uint64_t bytes_per_byte_of_bookkeeping = 128;

}  // namespace

host_room available_host_memory(const std::string &root) {
  host_room room;
  const std::string machine = "/proc/meminfo";
  if (const auto kib = number_behind("MemAvailable:", contents_of(root + machine))) {
    take_smaller(room, *kib * 1024, machine);
  }
  look_at_all_groups(room, root);
  return room;
}

status check_host_room(std::uint64_t bytes, const char *advice, const std::string &root) {
  const operation_scope scope("checkpoint::check_host_room");
  const host_room room = available_host_memory(root);
  const std::uint64_t besides = spare_bytes + bytes / bytes_per_byte_of_bookkeeping;
  const std::uint64_t available = left_of(room.bytes, besides);
  if (bytes <= available) return {};
  // A limit of 0 would mean that none is known.
  const error e{std::make_error_code(std::errc::not_enough_memory),
                operation_scope::current(),
                advice,
                bytes,
                std::max<std::uint64_t>(available, 1),
                error_unit::bytes};
  return tl::unexpected(e.about(room.limit));
}

}  // namespace stillmap::checkpoint
