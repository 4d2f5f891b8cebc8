#include "bench/costs/run.h"

#include <algorithm>
#include <fstream>

#include "bench/costs/machine.h"
#include "bench/costs/parts.h"
#include "bench/support/host.h"

namespace stillmap::costs {
namespace {

// "580.65.06", the version of NVIDIA's kernel driver. Costs change with it, not only with CUDA's.
std::string kernel_driver() {
  std::ifstream file("/proc/driver/nvidia/version");
  for (std::string word; file >> word;) {
    const auto is_version = [](char c) { return c == '.' || (c >= '0' && c <= '9'); };
    if (word.find('.') != std::string::npos && std::all_of(word.begin(), word.end(), is_version)) {
      return word;
    }
  }
  return "of unknown version";
}

std::string version_of(const driver &drv) {
  const std::string number =
      std::to_string(drv.version() / 1000) + "." + std::to_string(drv.version() % 1000 / 10);
  if (drv.is_simulator()) return "hostcuda, as CUDA " + number;
  return "driver " + kernel_driver() + ", CUDA " + number;
}

bool wanted(const part &p, const std::vector<std::string> &only) {
  return only.empty() || std::find(only.begin(), only.end(), p.name) != only.end();
}

}  // namespace

const std::vector<part> &all_parts() {
  constexpr auto unbacked = hostcuda_memory::unbacked, lazy = hostcuda_memory::lazy;
  static const std::vector<part> parts{
      {"small", "questions, events and streams", unbacked, false, 1, measure_small},
      {"sizes", "each call against the size", unbacked, false, 4, measure_sizes},
      {"adjacent", "against neighbouring mappings under one call", unbacked, true, 3,
       measure_adjacent},
      {"threads", "against threads that call at once", unbacked, false, 2, measure_threads},
      {"live", "against the mappings there are", unbacked, true, 4, measure_live},
      {"touch", "first touch, and who writes the zeros", lazy, true, 3, measure_touch},
      {"waits", "what waits for work on other memory", lazy, false, 3, measure_waits},
      {"capture", "what is legal while a stream captures", lazy, false, 1, measure_capture},
      // Last, because a driver may not recover from reaching its limit.
      {"ceiling", "how many mappings there can be", unbacked, true, 5, measure_ceiling},
  };
  return parts;
}

result<table> measure(driver &drv, const run_options &options) {
  table out;
  out.commit = bench::commit();
  out.seconds = options.seconds;
  out.quick = options.quick;
  out.driver = version_of(drv);
  double weights = 0;
  for (const part &p : all_parts()) weights += wanted(p, options.only) ? p.weight : 0;
  const time_left left(options.seconds, least_samples(options.quick), options.quick ? 20 : 1000);
  machine m(drv);
  for (const part &p : all_parts()) {
    if (!wanted(p, options.only)) continue;
    options.progress(std::string(p.name) + ": " + p.what);
    // Time that a part does not use is for the parts after it.
    const time_left now = left.share(p.weight / weights);
    weights -= p.weight;
    if (const status s = m.enter(p.memory); !s) {
      if (out.device.empty()) return tl::unexpected(s.error());
      out.add_fact(std::string("failed.") + p.name, name_of(s.error()), s.error().message());
      continue;
    }
    if (out.device.empty()) {
      out.device = m.device_name();
      out.hostcuda = m.hostcuda_config();
      if (!m.vmm()) {
        out.add_fact("missing.vmm", name_of(m.vmm().error()),
                     "no memory can be mapped here, so only the rest is measured: " +
                         m.vmm().error().message());
      }
    }
    if (p.needs_vmm && !m.vmm()) continue;
    p.measure(m, now, options.quick, out);
    if (const std::string behind = m.leave(); !behind.empty()) {
      out.add_fact(std::string("left_behind.") + p.name, behind,
                   "after '" + std::string(p.name) + "' there is left: " + behind);
    }
  }
  return out;
}

}  // namespace stillmap::costs
