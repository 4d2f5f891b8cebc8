#include "tools/stillmap/common/machine.h"

#include <fmt/format.h>
#include <hostcuda/hostcuda.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "stillmap/vmm/base/try.h"

namespace stillmap::tool {
namespace {

constexpr const char *driver_advice =
    "Install an NVIDIA driver, or build hostcuda (./run does it) and name it with "
    "STILLMAP_HOSTCUDA=path; STILLMAP_VERBOSE=1 names every path that is tried.";

std::string name_of_library(const std::string &which) {
  if (which == "cuda") return "libcuda.so.1 of the system (WSL's and containers' paths too)";
  if (which == "host") return "hostcuda (STILLMAP_HOSTCUDA, or beside this program)";
  return fmt::format("the library '{}' (--driver is cuda, host or a path)", which);
}

// The error of a library that could not be opened has advice of its own.
tl::unexpected<failure> none(const std::string &tried) {
  const bool advised = tried.find("STILLMAP_VERBOSE") != std::string::npos;
  return fail(exit_not_found,
              advised ? fmt::format("no CUDA driver: tried {}", tried)
                      : fmt::format("no CUDA driver: tried {}. {}", tried, driver_advice));
}

outcome<driver *> load_one(const std::string &which) {
  auto drv = driver::load(which);
  if (!drv) return none(fmt::format("{}: {}", name_of_library(which), drv.error().message()));
  const auto count = (*drv)->device_count();
  if (!count) return none(fmt::format("{}: {}", name_of_library(which), count.error().message()));
  if (*count == 0) return none(fmt::format("{}: it has no device", name_of_library(which)));
  return *drv;
}

// Calls a function of hostcuda. False: the driver does not have it, or it failed.
template <class... Arguments>
bool call(const driver &drv, const char *name, Arguments... arguments) {
  const auto function = reinterpret_cast<CUresult (*)(Arguments...)>(drv.symbol(name));
  return function != nullptr && function(arguments...) == CUDA_SUCCESS;
}

}  // namespace

outcome<driver *> choose_driver(const std::string &which) {
  const char *const environment = ::secure_getenv("STILLMAP_DRIVER");
  const std::string wanted = which.empty() && environment != nullptr ? environment : which;
  if (!wanted.empty()) return load_one(wanted);
  if (const auto gpu = load_one("cuda")) return gpu;
  const auto host = driver::load("host");
  if (!host) {
    return none(fmt::format("{}, then {}: {}", name_of_library("cuda"), name_of_library("host"),
                            host.error().message()));
  }
  return load_one("host");
}

outcome<device> open_device(driver &drv, int ordinal) {
  const auto count = drv.device_count();
  if (!count) return fail(exit_not_found, count.error().message());
  if (ordinal < 0 || ordinal >= *count) {
    return fail(exit_not_found, fmt::format("there is no device {}: this driver has {} (0 to {})",
                                            ordinal, *count, *count - 1));
  }
  STILLMAP_ASSIGN_OR_RETURN(auto d, device::open(drv, ordinal));
  return d;
}

outcome<device> open_device(const driver_options &o) {
  STILLMAP_ASSIGN_OR_RETURN(auto drv, choose_driver(o.driver));
  return open_device(*drv, o.device);
}

std::string describe(const driver &drv, const device &d) {
  if (drv.is_simulator()) {
    return fmt::format("hostcuda, a CUDA driver on host memory (simulating '{}')", d.name());
  }
  return fmt::format("the GPU {}", d.name());
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::optional<std::uint64_t> bytes_copied_on_device(const driver &drv) {
  hostcuda_counters counters = {};
  if (!call(drv, "hostcuda_get_counters", &counters)) return std::nullopt;
  return counters.bytes_dtod;
}

void write_calls(json_writer &json, std::string_view key, const driver_counts &counts) {
  json.begin_object(key);
  for (std::size_t i = 0; i < driver_call_count; ++i) {
    if (counts.calls[i] != 0) json.field(name_of(static_cast<driver_call>(i)), counts.calls[i]);
  }
  json.end();
}

bool keeps_content(const driver &drv) {
  const char *config = nullptr;
  return !call(drv, "hostcuda_config", &config) ||
         std::string_view(config).find(",unbacked") == std::string_view::npos;
}

}  // namespace stillmap::tool
