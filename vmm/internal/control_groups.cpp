#include "stillmap/vmm/internal/control_groups.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap {
namespace {

constexpr const char *all_groups = "/sys/fs/cgroup";
constexpr std::string_view region_front = "nvidia/", region_end = "/vidmem";

// Digits before the first colon may have leading zeros: "0000:17:00.0", "00000000:17:00.0".
std::string_view without_zeros(std::string_view pci) {
  const std::size_t first = std::min(pci.find_first_not_of('0'), pci.find(':'));
  return first == std::string_view::npos ? pci : pci.substr(first);
}

bool same_address(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; };
  return std::ranges::equal(without_zeros(a), without_zeros(b), {}, lower, lower);
}

bool is_region_of(std::string_view region, std::string_view pci) {
  if (!region.starts_with(region_front) || !region.ends_with(region_end)) return false;
  region.remove_prefix(region_front.size());
  region.remove_suffix(std::min(region_end.size(), region.size()));
  return same_address(region, pci);
}

// The value of the device in a file with lines "REGION NUMBER" or "REGION max"; nullopt: it has none.
std::optional<std::uint64_t> value_in(const std::string &file, const std::string &pci) {
  std::ifstream from(file);
  for (std::string line; std::getline(from, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || !is_region_of(line.substr(0, space), pci)) continue;
    const std::string value = line.substr(space + 1);
    if (value == "max") return memory_limits::none;
    std::uint64_t number = 0;
    const char *const end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, number);
    if (error == std::errc() && rest == end) return number;
  }
  return std::nullopt;
}

// Calls act(folder) for the group, and for those above it.
template <class Act>
void for_each_level(const std::string &groups, const std::string &group, const Act &act) {
  for (std::string at = group == "/" ? "" : group;; at.resize(at.rfind('/'))) {
    act(groups + at);
    if (at.empty()) return;
  }
}

// The group of this process in version 2's hierarchy; empty: it has none.
std::string own_group() {
  std::ifstream from("/proc/self/cgroup");
  for (std::string line; std::getline(from, line);) {
    if (line.starts_with("0::/")) return line.substr(3);
  }
  return {};
}

// A controller need not be enabled in the innermost group.
bool has_nvidia_region(const std::string &groups, const std::string &group) {
  bool found = false;
  for_each_level(groups, group, [&](const std::string &folder) {
    std::ifstream from(folder + "/dmem.max");
    for (std::string line; std::getline(from, line);) {
      found = found || line.starts_with(region_front);
    }
  });
  return found;
}

// CUdevice_attribute, by value.
enum pci_attribute : int { pci_bus = 33, pci_device = 34, pci_domain = 50 };

result<std::string> pci_address(const device &d) {
  const auto ask = [&](pci_attribute a) { return d.driver().device_attribute(a, d.ordinal()); };
  STILLMAP_ASSIGN_OR_RETURN(const int domain, ask(pci_domain));
  STILLMAP_ASSIGN_OR_RETURN(const int bus, ask(pci_bus));
  STILLMAP_ASSIGN_OR_RETURN(const int slot, ask(pci_device));
  char text[32];
  (void)std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", static_cast<unsigned>(domain),
                      static_cast<unsigned>(bus), static_cast<unsigned>(slot));
  return std::string(text);
}

}  // namespace

memory_limits read_memory_limits(const std::string &groups, const std::string &group,
                                 const std::string &pci) {
  memory_limits out;
  for_each_level(groups, group, [&](const std::string &folder) {
    if (const auto most = value_in(folder + "/dmem.max", pci); most && *most < out.hard) {
      out.hard = *most;
      out.used = value_in(folder + "/dmem.current", pci).value_or(0);
    }
    const auto least = value_in(folder + "/dmem.min", pci);
    if (out.soft == memory_limits::none && least && *least != 0) out.soft = *least;
  });
  return out;
}

result<memory_limits> memory_limits_of(const device &d) {
  return with_host_memory("memory_limits_of", [&]() -> result<memory_limits> {
    const std::string group = own_group();
    if (group.empty() || !has_nvidia_region(all_groups, group)) return memory_limits();
    STILLMAP_ASSIGN_OR_RETURN(const std::string pci, pci_address(d));
    return read_memory_limits(all_groups, group, pci);
  });
}

}  // namespace stillmap
