#include "bench/support/session.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

bool smoke() {
  return std::string(environment("STILLMAP_BENCH_SMOKE")) == "1";
}

bool on_gpu() {
  return the_driver() != nullptr && !the_driver()->is_simulator();
}

std::size_t amount(std::size_t here, std::size_t gpu) {
  if (smoke()) return here;
  const std::size_t asked = std::strtoull(environment("STILLMAP_BENCH_GIB"), nullptr, 10);
  if (asked != 0) return asked << 30;
  return on_gpu() ? gpu : here;
}

driver *the_driver() {
  static driver *const found = []() -> driver * {
    const auto drv = find_driver();
    if (drv) return *drv;
    std::fprintf(stderr, "no driver: %s\n", drv.error().message().c_str());
    return nullptr;
  }();
  return found;
}

const char *name_of(memory_kind kind) {
  if (kind == memory_kind::backed) return "backed";
  return kind == memory_kind::lazy ? "lazy" : "unbacked";
}

session::session(benchmark::State &state, memory_kind kind, std::size_t needs)
    : state_(state), kind_(kind) {
  if (the_driver()->is_simulator()) {
    const std::string config = hostcuda_settings(name_of(kind));
    // Backed memory is host memory. A quarter more than needed, so that other programs keep some memory.
    if (kind == memory_kind::backed && checkpoint::available_host_memory().bytes / 5 * 4 < needs) {
      state_.SkipWithError("too little host memory");
      return;
    }
    if (!call_hostcuda<decltype(hostcuda_reset)>(*the_driver(), "hostcuda_reset", config.c_str())) {
      state_.SkipWithError("hostcuda refused to start again");
      return;
    }
    if (!check(the_driver()->initialise())) return;
  }
  auto opened = device::open(*the_driver(), 0);
  if (!check(opened)) return;
  const auto memory = opened->memory();
  if (!check(memory)) return;
  if (memory->free.bytes() < needs) {
    state_.SkipWithError("too little device memory");
    return;
  }
  device_ = *opened;
  peak_before_ = hostcuda_counters_of(driver()).physical_bytes;
}

tally session::now() const {
  return {driver().counts(), hostcuda_counters_of(driver()).first_touch_ns};
}

void session::add(const tally &before) {
  const tally after = now();
  const driver_counts made = after.counts - before.counts;
  calls_ += made.total();
  copied_ += made.bytes_on_device;
  first_touch_ns_ += after.first_touch_ns - before.first_touch_ns;
}

void session::report(double per) {
  if (!device_ || state_.iterations() == 0) return;
  const double n = static_cast<double>(state_.iterations()) * per;
  state_.counters["calls"] = static_cast<double>(calls_) / n;
  state_.counters["copied_MiB"] = static_cast<double>(copied_ >> 20) / n;
  const std::uint64_t peak = driver().is_simulator()
                                 ? hostcuda_counters_of(driver()).physical_peak - peak_before_
                                 : dev().space().stats().physical_peak.bytes();
  state_.counters["peak_MiB"] = static_cast<double>(peak >> 20);  // of the whole case
  if (driver().is_simulator() && kind_ == memory_kind::backed) {
    state_.counters["touch_ms"] = static_cast<double>(first_touch_ns_) / 1e6 / n;
  }
}

void session::fail(const error &e) {
  state_.SkipWithError(e.message().c_str());
}

result<growable_buffer> make_buffer(const device &d, std::size_t bytes, const std::string &tag) {
  buffer_options options;
  options.reserve_bytes = bytes;
  options.tag = tag;
  STILLMAP_ASSIGN_OR_RETURN(growable_buffer made, growable_buffer::create(d, std::move(options)));
  STILLMAP_RETURN_IF_ERROR(made.resize(bytes));
  return made;
}

status write_bytes(const device &d, device_address at, std::size_t bytes) {
  const context_guard guard(d.driver(), d.context());
  STILLMAP_RETURN_IF_ERROR(d.driver().set_bytes_async(at, written_byte, bytes, nullptr));
  return d.driver().synchronize_context();
}

}  // namespace stillmap::bench

int main(int argc, char **argv) {
  using namespace stillmap::bench;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  stillmap::driver *const drv = the_driver();
  if (drv == nullptr) return 1;
  benchmark::AddCustomContext("cpu", cpu_model());
  benchmark::AddCustomContext("driver", drv->path());
  benchmark::AddCustomContext("driver_version", std::to_string(drv->version()));
  benchmark::AddCustomContext(
      "driver_is", drv->is_simulator() ? "hostcuda (host memory; no GPU figures)" : "CUDA");
  if (const auto d = stillmap::device::open(*drv, 0)) {
    benchmark::AddCustomContext("device", d->name());
  }
  if (drv->is_simulator()) {
    const char *config = "";
    call_hostcuda<decltype(hostcuda_config)>(*drv, "hostcuda_config", &config);
    benchmark::AddCustomContext("hostcuda", config);
  }
  benchmark::AddCustomContext("commit", commit());
  benchmark::AddCustomContext("smoke", smoke() ? "yes: the numbers mean nothing" : "no");
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
