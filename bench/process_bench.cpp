// A process suspended and resumed by the driver (cuCheckpointProcess*), on drivers that can: the
// alternative to the rows of suspend_bench. The other process holds the memory, and exits with 0 if
// its contents are right afterwards.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "bench/support/other_process.h"
#include "bench/support/session.h"
#include "stillmap/checkpoint/process/driver_process.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

constexpr const char *folder_name = "STILLMAP_BENCH_FROZEN";

std::size_t total_bytes() {
  return smoke() ? 64_MiB : amount(2_GiB, 16_GiB);
}
void leave(const std::string &file) {
  std::ofstream(file) << "there";
}
bool wait_for(const std::string &file) {
  for (int i = 0; i < 60'000; ++i) {
    if (std::filesystem::exists(file)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

// The other process: writes, is frozen and thawed, and compares.
[[noreturn]] void hold(const std::string &folder) {
  driver *const drv = the_driver();
  const auto d = drv != nullptr ? device::open(*drv, 0) : result<device>(tl::unexpect, error{});
  if (!d) ::_exit(2);
  const auto memory = make_buffer(*d, total_bytes());
  if (!memory) ::_exit(3);
  if (!write_bytes(*d, memory->address(), total_bytes())) ::_exit(4);
  const context_guard guard(*drv, d->context());
  leave(folder + "/ready");
  if (!wait_for(folder + "/over")) ::_exit(5);
  for (std::size_t at = 0; at < total_bytes(); at += 1_MiB) {
    unsigned char seen = 0;
    if (!drv->copy_to_host(&seen, memory->address() + at, 1) || seen != written_byte) ::_exit(6);
  }
  ::_exit(0);
}

// Before main, since the other process is this program again.
[[maybe_unused]] const bool is_other = [] {
  if (const char *const folder = std::getenv(folder_name); folder != nullptr) hold(folder);
  return false;
}();

void freezing(benchmark::State &state) {
  for (auto _ : state) {
    session s(state, memory_kind::backed, total_bytes());
    if (!s) return;
    if (!s.driver().has(driver_call::CheckpointProcessLock)) {
      return state.SkipWithError("this driver has no cuCheckpointProcess");
    }
    char name[] = "/tmp/stillmap-bench-XXXXXX";
    const std::string folder = ::mkdtemp(name);
    stopwatch away, back;
    status done;
    bool good = false;
    {
      other_process other({std::string(folder_name) + '=' + folder});
      if (wait_for(folder + "/ready")) {
        done = away.time(
            [&] { return process::freeze(s.driver(), other.pid(), std::chrono::seconds(10)); });
        if (done) {
          done = back.time([&] { return process::thaw(s.driver(), other.pid()); });
        }
      }
      leave(folder + "/over");
      good = other.ended_well();
    }
    std::error_code left;
    std::filesystem::remove_all(folder, left);
    if (!s.check(done)) return;
    if (!good) return state.SkipWithError("the other process did not find what it had");
    state.SetIterationTime(away.seconds() + back.seconds());
    state.counters["away_ms"] = away.seconds() * 1e3;
    state.counters["back_ms"] = back.seconds() * 1e3;
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(2 * total_bytes()) * state.iterations());
}

BENCHMARK(freezing)
    ->Name("process/away_and_back")
    ->Iterations(smoke() ? 1 : 3)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace stillmap::bench
