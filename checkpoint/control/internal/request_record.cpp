#include "stillmap/checkpoint/control/internal/request_record.h"

#include <fstream>
#include <utility>

namespace stillmap::control {
namespace {

// The name of a process; empty: it has ended.
std::string program_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

}  // namespace

void request_record::begin(const checkpoint::socket_channel &with, const std::string &address) {
  if (!to_) return;
  record_ = {};  // the time is now
  record_.client = with.peer();
  record_.client_program = program_of(with.peer().pid);
  record_.task = address;
  began_ = std::chrono::steady_clock::now();
}

void request_record::end(const error *failed) {
  if (!to_ || std::exchange(has_ended_, true)) return;
  // Asked once a second by who watches the machine, also while the task is not ready.
  const bool is_watched = failed == nullptr || failed->is(errc::busy);
  if (is_watched && record_.request == request_kind::status) return;
  record_.duration = std::chrono::steady_clock::now() - began_;
  if (failed != nullptr) record_.failed = *failed;
  to_(record_);
}

}  // namespace stillmap::control
