#include "bench/replay/simulator.h"

#include <fmt/format.h>
#include <hostcuda/hostcuda.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "bench/replay/internal/failure.h"

namespace stillmap::replay {
namespace {

template <class Function>
bool find(const driver &drv, const char *name, Function *&out) {
  out = reinterpret_cast<Function *>(drv.simulator_function(name));
  return out != nullptr;
}

std::optional<hostcuda_counters> counters(const driver &drv) {
  CUresult (*get)(hostcuda_counters *) = nullptr;
  hostcuda_counters c = {};
  if (!find(drv, "get_counters", get) || get(&c) != CUDA_SUCCESS) return std::nullopt;
  return c;
}

// Costs of memory calls, in ns and ns per MiB: the order of magnitude published for an A100 and an
// H100. HOSTCUDA=costs=FILE gives a table that was measured on a GPU.
constexpr const char *usual_costs =
    "cuMemAddressReserve 2000 0\n"
    "cuMemAddressFree 2000 0\n"
    "cuMemCreate 27000 1000\n"
    "cuMemRelease 21000 1000\n"
    "cuMemMap 2000 0\n"
    "cuMemUnmap 30000 0\n"
    "cuMemSetAccess 38000 36\n"
    "cuMemAlloc 100000 1000\n"
    "cuMemFree 100000 1000\n"
    "cuMemAllocAsync 1500 0\n"
    "cuMemFreeAsync 1000 0\n"
    "cuEventCreate 1000 0\n"
    "cuEventDestroy 1000 0\n"
    "cuEventRecord 1500 0\n"
    "cuEventQuery 700 0\n"
    "cuEventSynchronize 5000 0\n"
    "cuStreamWaitEvent 1000 0\n"
    "cuStreamSynchronize 5000 0\n"
    "cuCtxSynchronize 10000 0\n"
    "cuCtxGetCurrent 50 0\n"
    "cuCtxPushCurrent 200 0\n"
    "cuCtxPopCurrent 200 0\n"
    "cuStreamIsCapturing 100 0\n"
    "cuThreadExchangeStreamCaptureMode 50 0\n";

// A file that is removed with this object.
class temporary_file {
 public:
  explicit temporary_file(const char *text) {
    const char *folder = ::secure_getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/stillmap-costs-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    if (fd < 0) return;
    const std::string_view all(text);
    good_ = ::write(fd, all.data(), all.size()) == static_cast<ssize_t>(all.size());
    ::close(fd);
  }
  temporary_file(const temporary_file &) = delete;
  temporary_file &operator=(const temporary_file &) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }
  // Empty: it could not be written.
  std::string path() const { return good_ ? path_ : ""; }

 private:
  std::string path_;
  bool good_ = false;
};

}  // namespace

status become_machine(driver &drv, const std::string &profile, bool keep_bytes) {
  CUresult (*reset)(const char *) = nullptr;
  if (!find(drv, "reset", reset)) {
    if (profile.empty()) return {};
    return fail(errc::invalid_argument, "--profile is for hostcuda; this driver is " + drv.path());
  }
  const char *environment = ::secure_getenv("HOSTCUDA");
  std::string config = environment != nullptr ? environment : "";
  const auto add = [&config](const std::string &more) {
    config += (config.empty() ? "" : ",") + more;
  };
  if (!profile.empty()) add("profile=" + profile);
  if (!keep_bytes) {
    add("unbacked");
  } else if (config.find("backed") == std::string::npos) {
    add("lazy");  // the default: only bytes that are touched need memory
  }
  const temporary_file costs(usual_costs);
  if (config.find("costs=") == std::string::npos && !costs.path().empty()) {
    add("costs=" + costs.path());
  }
  if (reset(config.c_str()) != CUDA_SUCCESS) {
    return fail(errc::invalid_argument,
                fmt::format("hostcuda does not know the machine '{}'", config));
  }
  return drv.initialise();  // the reset undid it
}

call_cost modelled_cost(const std::string &function) {
  const char *environment = ::secure_getenv("HOSTCUDA");
  const std::string config = environment != nullptr ? environment : "";
  std::stringstream table(usual_costs);
  if (const std::size_t at = config.find("costs="); at != config.npos) {
    const std::size_t begin = at + std::string_view("costs=").size();
    std::ifstream file(config.substr(begin, config.find(',', begin) - begin));
    table.str("");
    table << file.rdbuf();
  }
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string name;
    call_cost cost;
    if (words >> name >> cost.fixed_ns >> cost.ns_per_mib && name == function) return cost;
  }
  return {};
}

std::optional<std::uint64_t> physical_bytes(const driver &drv) {
  const auto c = counters(drv);
  return c ? std::optional(c->physical_bytes) : std::nullopt;
}
std::optional<std::uint64_t> physical_peak(const driver &drv) {
  const auto c = counters(drv);
  return c ? std::optional(c->physical_peak) : std::nullopt;
}
std::uint64_t violations(const driver &drv) {
  const auto c = counters(drv);
  return c ? c->violations : 0;
}

driver_counts counts_of_process(const driver &drv) {
  driver_counts out;
  CUresult (*each)(void (*)(const char *, std::uint64_t, void *), void *) = nullptr;
  if (!find(drv, "each_call", each)) return out;
  const auto add = [](const char *name, std::uint64_t calls, void *to) {
    static const auto by_name = [] {
      std::unordered_map<std::string_view, std::size_t> all;
      for (std::size_t i = 0; i < driver_call_count; ++i) {
        all.emplace(name_of(static_cast<driver_call>(i)), i);
      }
      return all;
    }();
    const auto known = by_name.find(name);
    if (known != by_name.end()) static_cast<driver_counts *>(to)->calls[known->second] = calls;
  };
  each(add, &out);
  return out;
}

modelled_time::modelled_time(const driver &drv) : get_(drv.simulator_function("modelled_ns")) {}

std::optional<std::uint64_t> modelled_time::ns() const {
  const auto get = reinterpret_cast<CUresult (*)(std::uint64_t *)>(get_);
  std::uint64_t ns = 0;
  if (get == nullptr || get(&ns) != CUDA_SUCCESS) return std::nullopt;
  return ns;
}

bool occupy(const device &d, std::size_t bytes) {
  CUresult (*take)(CUdevice, std::size_t) = nullptr;
  return find(d.driver(), "occupy", take) && take(d.ordinal(), bytes) == CUDA_SUCCESS;
}

}  // namespace stillmap::replay
