#include "tests/support/held.h"

#include <chrono>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/support/hostcuda_control.h"

namespace stillmap::testing {

held held::now(const driver &d) {
  namespace control = hostcuda_control;
  const hostcuda_counters n = control::counters();
  std::ostringstream out;
  out << "handles " << n.live_handles << " mappings " << n.live_mappings << " reservations "
      << n.live_reservations << " streams " << n.live_streams << " events " << n.live_events
      << " bytes " << n.physical_bytes << " pinned " << n.live_host_ranges << " imports "
      << d.imports().size();
  held h;
  h.driver_ = out.str();
  h.descriptors_ = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  return h;
}

std::string held::more_now(const driver &d) const {
  held after = now(d);
  for (int i = 0; i < 2000 && !after.same_as(*this); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    after = now(d);
  }
  if (after.same_as(*this)) return {};
  const auto text = [](const held &h) {
    return h.driver_ + " descriptors " + std::to_string(h.descriptors_);
  };
  return text(*this) + " / " + text(after);
}

}  // namespace stillmap::testing
