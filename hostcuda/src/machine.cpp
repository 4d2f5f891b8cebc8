// Profiles and the configuration string.
#include "hostcuda/src/machine.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "hostcuda/src/host_limits.h"

namespace hostcuda {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kGiB = std::size_t{1} << 30;

profile h200() {
  profile p;
  p.name = "h200";
  p.device_name = "hostcuda H200";
  p.device_memory = std::size_t{150754820096};
  return p;
}

profile a100() {
  profile p;
  p.name = "a100";
  p.device_name = "hostcuda A100-SXM4-80GB";
  p.compute_major = 8;
  p.multiprocessors = 108;
  p.device_memory = std::size_t{85097971712};
  return p;
}

bool find_profile(const std::string &name, profile *out) {
  if (name == "h200") {
    *out = h200();
  } else if (name == "a100") {
    *out = a100();
  } else if (name == "wsl2") {
    *out = h200();
    out->device_name = "hostcuda RTX 4090 (WSL 2)";
    out->compute_major = 8;
    out->compute_minor = 9;
    out->multiprocessors = 128;
    out->device_memory = 24 * kGiB;
    out->reservation_cap = 32 * kGiB - 2 * kMiB;
    out->fails_rdma_access = true;
    out->refuses_fd_pools = true;
  } else if (name == "mig") {
    *out = h200();
    out->device_name = "hostcuda H200 MIG 1g.18gb";
    out->multiprocessors = 16;
    out->device_memory = 16 * kGiB;
    out->is_mig = true;
  } else if (name == "integrated") {
    *out = h200();
    out->device_name = "hostcuda GB10";
    out->compute_major = 12;
    out->compute_minor = 1;
    out->multiprocessors = 48;
    out->device_memory = 120 * kGiB;
    out->is_integrated = true;
  } else if (name == "vgpu-no-vmm") {
    *out = a100();
    out->device_name = "hostcuda GRID A100-20C";
    out->device_memory = 20 * kGiB;
    out->has_vmm = false;
    out->has_pools = false;
  } else if (name == "old-driver-450") {
    *out = a100();
    out->device_name = "hostcuda A100-SXM4-40GB";
    out->device_memory = std::size_t{42505273344};
    out->driver_version = 11000;
    out->has_pools = false;
  } else if (name.rfind("multi:", 0) == 0) {
    *out = h200();
    char *end = nullptr;
    const long n = std::strtol(name.c_str() + 6, &end, 10);
    if (*end != '\0' || n < 1 || n > kMaxDevices) return false;
    out->device_count = static_cast<int>(n);
  } else {
    return false;
  }
  out->name = name;
  out->device_memory = out->device_memory / (2 * kMiB) * (2 * kMiB);
  return true;
}

bool parse_number(const std::string &s, std::uint64_t *out) {
  if (s.empty() || s[0] < '0' || s[0] > '9') return false;
  char *end = nullptr;
  *out = std::strtoull(s.c_str(), &end, 10);
  std::uint64_t unit = 1;
  const std::size_t power = std::string_view("KMGT").find(
      static_cast<char>(std::toupper(static_cast<unsigned char>(*end))));
  if (power != std::string_view::npos) {
    unit = std::uint64_t{1024} << (10 * power);
    ++end;
  }
  if (*end != '\0' || *out > (std::uint64_t{1} << 47) / unit) return false;
  *out *= unit;
  return true;
}

std::string describe(const settings &s) {
  std::ostringstream o;
  o << "profile=" << s.machine.name << ",memory=" << s.machine.device_memory << ','
    << (!s.backed ? "unbacked"
        : s.lazy  ? "lazy"
                  : "backed")
    << ',' << (s.strict ? "strict" : "lenient") << ",schedule=";
  switch (s.schedule) {
    case schedule_kind::threads:
      o << "threads";
      break;
    case schedule_kind::jitter:
      o << "jitter:" << s.seed << ",jitter_us=" << s.jitter_us;
      break;
    case schedule_kind::seeded:
      o << "seeded:" << s.seed;
      break;
  }
  o << ",mappings=" << s.machine.mapping_ceiling;
  if (!s.machine.has_peers) o << ",peers=none";
  if (s.keep != host_memory() / 8) o << ",keep=" << s.keep;
  if (s.skip_kernels) o << ",kernels=skip";
  if (s.vmm_in_capture) o << ",vmm_in_capture=allow";
  if (s.reuse_stream_handles) o << ",stream_handles=reuse";
  if (!s.machine_name.empty()) o << ",machine=" << s.machine_name;
  if (!s.costs_file.empty()) o << ",costs=" << s.costs_file;
  return o.str();
}

bool parse_schedule(const std::string &value, settings *out) {
  if (value == "threads") {
    out->schedule = schedule_kind::threads;
    return true;
  }
  const std::size_t colon = value.find(':');
  if (colon == std::string::npos) return false;
  const std::string kind = value.substr(0, colon);
  if (kind == "jitter") {
    out->schedule = schedule_kind::jitter;
  } else if (kind == "seeded") {
    out->schedule = schedule_kind::seeded;
  } else {
    return false;
  }
  return parse_number(value.substr(colon + 1), &out->seed);
}

// It becomes a part of a file name.
bool is_machine_name(const std::string &name) {
  return !name.empty() && name.size() <= 64 &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
         });
}

// Applies one key=value. The profile is applied first, so that the order does not matter.
bool apply(const std::string &key, const std::string &value, settings *out) {
  std::uint64_t n = 0;
  if (key == "profile") return true;
  if (key == "backed" || key == "lazy" || key == "unbacked") {
    out->backed = key != "unbacked";
    out->lazy = key == "lazy";
    return value.empty();
  }
  if (key == "strict" || key == "lenient") {
    out->strict = key == "strict";
    return value.empty();
  }
  if (key == "schedule") return parse_schedule(value, out);
  if (key == "peers") {
    out->machine.has_peers = value == "all";
    return value == "all" || value == "none";
  }
  if (key == "kernels") {
    out->skip_kernels = value == "skip";
    return value == "skip" || value == "refuse";
  }
  if (key == "vmm_in_capture") {
    out->vmm_in_capture = value == "allow";
    return value == "allow" || value == "refuse";
  }
  if (key == "stream_handles") {
    out->reuse_stream_handles = value == "reuse";
    return value == "reuse" || value == "new";
  }
  if (key == "machine") {
    out->machine_name = value;
    return is_machine_name(value);
  }
  if (key == "costs") {
    out->costs_file = value;
    return !value.empty();
  }
  if (!parse_number(value, &n)) return false;
  if (key == "memory") {
    out->machine.device_memory = n / (2 * kMiB) * (2 * kMiB);
    return out->machine.device_memory != 0;
  }
  if (key == "mappings") {
    out->machine.mapping_ceiling = n;
    return n != 0;
  }
  if (key == "keep") {
    out->keep = n;
    return true;
  }
  if (key == "jitter_us") {
    out->jitter_us = static_cast<unsigned>(n);
    return n <= 10000000;
  }
  return false;
}

// Quotes text for a message: without control characters, and of limited length.
std::string quoted(const std::string &text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > 80 ? "...'" : "'");
}

settings *in_force = nullptr;
std::mutex &mutex() {
  static std::mutex *const m = new std::mutex;
  return *m;
}

}  // namespace

bool parse_settings(const char *config, settings *out, std::string *reason) {
  settings s;
  s.keep = host_memory() / 8;
  find_profile("h200", &s.machine);
  std::vector<std::pair<std::string, std::string>> items;
  std::istringstream in(config == nullptr ? "" : config);
  for (std::string item; std::getline(in, item, ',');) {
    const std::size_t eq = item.find('=');
    const bool has_value = eq != std::string::npos;
    items.emplace_back(item.substr(0, eq), has_value ? item.substr(eq + 1) : "");
  }
  for (const auto &[key, value] : items)
    if (key == "profile" && !find_profile(value, &s.machine)) {
      *reason = "unknown profile " + quoted(value);
      return false;
    }
  for (const auto &[key, value] : items)
    if (!apply(key, value, &s)) {
      *reason = quoted(key + (value.empty() ? "" : "=" + value)) + " is not a valid setting";
      return false;
    }
  // Limits the ceiling to what the process can hold. An unbacked machine maps nothing.
  if (s.backed) s.machine.mapping_ceiling = std::min(s.machine.mapping_ceiling, most_areas());
  s.text = describe(s);
  *out = s;
  return true;
}

const settings &first_settings() {
  std::lock_guard<std::mutex> lock(mutex());
  if (in_force == nullptr) {
    auto *s = new settings;
    std::string reason;
    if (!parse_settings(std::getenv("HOSTCUDA"), s, &reason)) {
      std::fprintf(stderr, "hostcuda: HOSTCUDA: %s; using the default machine\n", reason.c_str());
      parse_settings("", s, &reason);
    }
    in_force = s;
    published_settings.store(s, std::memory_order_release);
  }
  return *in_force;
}

void replace_settings(const settings &s) {
  current_settings();
  std::lock_guard<std::mutex> lock(mutex());
  *in_force = s;  // no reader: hostcuda_reset() requires it
}

}  // namespace hostcuda
