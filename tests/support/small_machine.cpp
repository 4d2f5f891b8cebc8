#include "tests/support/small_machine.h"

#include <sstream>

#include "tests/support/hostcuda_control.h"
#include "tests/support/op_sequence.h"

namespace stillmap::testing::small_machine {

namespace control = hostcuda_control;

driver *start(std::size_t mib, std::uint64_t seed) {
  if (control::available()) {
    control::reset(machine_config("memory=" + std::to_string(mib) + "M,schedule=" +
                                  (seed == 0 ? "threads" : "seeded:" + std::to_string(seed)))
                       .c_str());
  }
  const auto drv = driver::get();
  return drv && (*drv)->initialise() ? *drv : nullptr;
}

void occupy(std::size_t bytes) {
  if (control::available()) control::occupy(0, bytes);
}

void fail(const std::string &name, std::uint64_t nth, int code) {
  if (!control::available()) return;
  static_cast<void>(control::faults_fired());
  control::fail(name.c_str(), nth, static_cast<CUresult>(code));
}

bool stop_failing(const std::string &name) {
  if (!control::available()) return false;
  control::stop_failing(name.empty() ? nullptr : name.c_str());
  return control::faults_fired() != 0;
}

std::string violation() {
  if (!control::available() || control::counters().violations == 0) return "";
  const hostcuda_violation first = control::violations().front();
  return "violation " + std::to_string(first.kind) + ": " + first.first +
         "\n  broken by: " + first.second;
}

std::string leftovers() {
  if (!control::available()) return "";
  const hostcuda_counters now = control::counters();
  std::ostringstream out;
  const auto line = [&](const char *what, std::uint64_t n) {
    if (n != 0) out << what << ": " << n << "\n";
  };
  line("physical allocations", now.live_handles);
  line("mappings", now.live_mappings);
  line("reservations", now.live_reservations);
  line("streams", now.live_streams);
  line("events", now.live_events);
  line("bytes of device memory", now.physical_bytes);
  line("pinned host ranges", now.live_host_ranges);
  return out.str();
}

std::string disagreement_about(std::size_t bytes) {
  if (!control::available()) return "";
  const std::uint64_t there = control::counters().physical_bytes;
  if (there == bytes) return "";
  return "the driver has " + std::to_string(there) + " bytes of memory in use, the ledger says " +
         std::to_string(bytes);
}

}  // namespace stillmap::testing::small_machine
