#include "tools/stillmap/machine/device_usage.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

namespace stillmap::tool {
namespace {

constexpr int nvml_success = 0, nvml_insufficient_size = 7;
constexpr unsigned long long not_available = ~0ULL;
constexpr unsigned longest_text = 96;

}  // namespace

std::string uuid_text(const std::array<unsigned char, 16> &uuid) {
  std::string out = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += fmt::format("{:02x}", uuid[i]);
  }
  return out;
}

struct nvml::functions {
  // As nvml.h of CUDA 12 and 13 declares them.
  using device_handle = struct nvmlDevice_st *;
  struct memory_v1 {
    unsigned long long total, free, used;
  };
  struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  };
  struct memory_limits_v1 {  // of CUDA 13.4
    const char *group;
    unsigned long long soft, hard, used;
  };

  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned *) = nullptr;
  int (*handle)(unsigned, device_handle *) = nullptr;
  int (*name)(device_handle, char *, unsigned) = nullptr;
  int (*uuid)(device_handle, char *, unsigned) = nullptr;
  int (*memory)(device_handle, memory_v1 *) = nullptr;
  int (*compute)(device_handle, unsigned *, process_info *) = nullptr;
  // Missing before CUDA 13.4.
  int (*by_uuid)(const char *, device_handle *) = nullptr;
  int (*limits)(device_handle, memory_limits_v1 *) = nullptr;

  bool look_up(void *library) {
    const auto find = [&](auto &function, const char *symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
      return function != nullptr;
    };
    if (!find(by_uuid, "nvmlDeviceGetHandleByUUID") ||
        !find(limits, "nvmlDeviceGetMemoryLimits_v1")) {
      limits = nullptr;
    }
    return find(init, "nvmlInit_v2") && find(shutdown, "nvmlShutdown") &&
           find(count, "nvmlDeviceGetCount_v2") && find(handle, "nvmlDeviceGetHandleByIndex_v2") &&
           find(name, "nvmlDeviceGetName") && find(uuid, "nvmlDeviceGetUUID") &&
           find(memory, "nvmlDeviceGetMemoryInfo") &&
           find(compute, "nvmlDeviceGetComputeRunningProcesses_v3");
  }

  // A process may come between two calls.
  std::vector<process_usage> processes_on(device_handle d) const {
    std::vector<process_info> infos(128);
    auto n = static_cast<unsigned>(infos.size());
    int done = compute(d, &n, infos.data());
    while (done == nvml_insufficient_size) {
      infos.resize(n + 16);
      n = static_cast<unsigned>(infos.size());
      done = compute(d, &n, infos.data());
    }
    std::vector<process_usage> out;
    for (unsigned i = 0; done == nvml_success && i < n && i < infos.size(); ++i) {
      out.push_back({infos[i].pid, infos[i].used == not_available
                                       ? std::nullopt
                                       : std::optional<std::uint64_t>(infos[i].used)});
    }
    return out;
  }

  std::optional<device_usage> usage_of(unsigned index) const {
    device_handle d = nullptr;
    std::array<char, longest_text> text{};
    memory_v1 m{};
    if (handle(index, &d) != nvml_success || memory(d, &m) != nvml_success) return std::nullopt;
    device_usage out;
    out.total = m.total;
    out.used = m.used;
    if (uuid(d, text.data(), longest_text) == nvml_success) out.uuid = text.data();
    if (name(d, text.data(), longest_text) == nvml_success) out.name = text.data();
    out.processes = processes_on(d);
    return out;
  }
};

outcome<std::unique_ptr<nvml>> nvml::open() {
  return open(false);
}
outcome<std::unique_ptr<nvml>> nvml::open_with_limits() {
  return open(true);
}

outcome<std::unique_ptr<nvml>> nvml::open(bool needs_limits) {
  void *const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return fail(exit_not_found, fmt::format("no NVML: {}", ::dlerror()));
  auto found = std::make_unique<functions>();
  if (!found->look_up(library)) {
    return fail(exit_not_found, "NVML is older than the driver 525, and lacks functions");
  }
  if (needs_limits && found->limits == nullptr) {
    return fail(exit_not_found, "NVML is older than CUDA 13.4, and has no memory limits");
  }
  if (const int code = found->init(); code != nvml_success) {
    return fail(exit_not_found, fmt::format("NVML does not start: its code is {}", code));
  }
  return std::unique_ptr<nvml>(new nvml(std::move(found)));
}

nvml::nvml(std::unique_ptr<functions> f) : call_(std::move(f)) {}
nvml::~nvml() {
  call_->shutdown();
}

std::vector<device_usage> nvml::devices() const {
  std::vector<device_usage> out;
  unsigned n = 0;
  if (call_->count(&n) != nvml_success) return out;
  for (unsigned i = 0; i < n; ++i) {
    if (auto usage = call_->usage_of(i)) out.push_back(std::move(*usage));
  }
  return out;
}

memory_limits nvml::limits_of(const std::string &uuid, const std::string &group) const {
  memory_limits out;
  functions::device_handle d = nullptr;
  functions::memory_limits_v1 found{group.c_str(), 0, memory_limits::none, 0};
  if (call_->limits == nullptr || call_->by_uuid(uuid.c_str(), &d) != nvml_success ||
      call_->limits(d, &found) != nvml_success) {
    return out;
  }
  out.hard = found.hard;  // NVML_DEVICE_MEMORY_LIMIT_MAX is all bits, as none
  if (found.soft != 0) out.soft = found.soft;
  if (out.any()) out.used = found.used;
  return out;
}

std::vector<std::pair<std::string, memory_limits>> nvml::all_limits(
    const std::string &group) const {
  std::vector<std::pair<std::string, memory_limits>> out;
  unsigned n = 0;
  if (call_->count(&n) != nvml_success) return out;
  for (unsigned i = 0; i < n; ++i) {
    functions::device_handle d = nullptr;
    std::array<char, longest_text> text{};
    if (call_->handle(i, &d) != nvml_success ||
        call_->uuid(d, text.data(), longest_text) != nvml_success) {
      continue;
    }
    if (const memory_limits l = limits_of(text.data(), group); l.any()) {
      out.emplace_back(text.data(), l);
    }
  }
  return out;
}

}  // namespace stillmap::tool
