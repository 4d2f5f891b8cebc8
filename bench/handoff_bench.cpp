// Handing memory off to another process, compared with a plain copy of 4 GiB in host memory in the
// same run, by one thread and by two. All of send() is timed, until nothing is mapped in this
// process. The cases with larger pages hold four times as much memory, most of it not present on
// the host: the cost of a handoff depends on the number of pages.
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/median.h"
#include "bench/support/other_process.h"
#include "bench/support/session.h"
#include "bench/support/task_memory.h"
#include "stillmap/checkpoint/handoff/handoff.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

using checkpoint::memory_layout;
using checkpoint::restored_memory;

constexpr const char *place_name = "STILLMAP_BENCH_TAKES_AT";

std::size_t handles() {
  return smoke() ? 32 : 2048;
}
// Of 64 MiB each: 100 GiB where a device has so much.
constexpr std::size_t handles_of_100_gib = 1600;
std::size_t copied_bytes() {
  return handles() * 2_MiB;
}

// hostcuda holds a descriptor for each page that others may have.
void raise_descriptors() {
  rlimit l{};
  if (::getrlimit(RLIMIT_NOFILE, &l) != 0) return;
  l.rlim_cur = l.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &l);
}

// By one thread, and by two.
std::array<double, 2> seconds_of_memcpy() {
  const std::size_t bytes = copied_bytes(), half = bytes / 2;
  const std::unique_ptr<unsigned char[]> from(new unsigned char[bytes]),
      to(new unsigned char[bytes]);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  const auto median_of = [](const auto &work) {
    std::vector<double> all(5);
    for (double &seconds : all) {
      stopwatch watch;
      watch.time(work);
      seconds = watch.seconds();
      benchmark::ClobberMemory();
    }
    return median(std::move(all));
  };
  return {median_of([&] { std::memcpy(to.get(), from.get(), bytes); }), median_of([&] {
            std::thread other([&] { std::memcpy(to.get() + half, from.get() + half, half); });
            std::memcpy(to.get(), from.get(), half);
            other.join();
          })};
}

// The other process: receives, reads the ends of every page, and exits with 0 if they are right.
[[noreturn]] void take_there(const char *place) {
  raise_descriptors();
  driver *const drv = the_driver();
  auto d = drv != nullptr ? device::open(*drv, 0) : result<device>(tl::unexpected<error>(error{}));
  auto at = handoff::listener::create(place);
  if (!d || !at) ::_exit(2);
  auto from = at->accept(std::chrono::milliseconds(60'000));
  if (!from) ::_exit(3);
  const auto taken = handoff::receive(*d, *from);
  if (!taken) {
    std::fprintf(stderr, "the receiver: %s\n", taken.error().message().c_str());
    ::_exit(4);
  }
  // Reading is not part of the hand-off: on a small machine it would take processors from the
  // sender, which is timed.
  std::this_thread::sleep_for(std::chrono::milliseconds(smoke() ? 1 : 100));
  const driver_counts counts = drv->counts();
  bool good = counts.bytes_on_device == 0 && counts.bytes_to_device == 0;
  const context_guard guard(*drv, d->context());
  for (const memory_layout::place &p : taken->layout().places) {
    const std::size_t bytes = taken->layout().pages[p.page].bytes;
    for (const device_address there : {p.at, p.at + (bytes - 1)}) {
      unsigned char seen = 0;
      good = good && drv->copy_to_host(&seen, there, 1) && seen == written_byte;
    }
  }
  ::_exit(good ? 0 : 5);
}

// Before main, since the other process is this program again.
[[maybe_unused]] const bool is_receiver = [] {
  const char *const place = std::getenv(place_name);
  if (place != nullptr) take_there(place);
  return false;
}();

other_process start_receiver(const std::string &place, memory_kind kind) {
  return other_process(
      {std::string(place_name) + '=' + place, "HOSTCUDA=" + hostcuda_settings(name_of(kind))});
}

// Pages of that size, written as a whole or only at the bytes that the receiver reads.
result<restored_memory> make_task(const device &d, std::size_t pages, std::size_t page, bool all) {
  page_pool_options options;
  options.page_bytes = page;
  options.exportable = handle_type::posix_fd;
  STILLMAP_ASSIGN_OR_RETURN(auto made, make_task_memory(d, pages, options));
  if (all) {
    STILLMAP_RETURN_IF_ERROR(write_bytes(d, task_begin, pages * page));
    return made;
  }
  for (device_address at = task_begin; at != task_begin + pages * page; at = at + page) {
    STILLMAP_RETURN_IF_ERROR(write_bytes(d, at, 1));
    STILLMAP_RETURN_IF_ERROR(write_bytes(d, at + (page - 1), 1));
  }
  return made;
}

void handing_over(benchmark::State &state, std::size_t pages, std::size_t page, memory_kind kind) {
  raise_descriptors();
  const auto plain = seconds_of_memcpy();
  std::vector<double> spent;
  int round = 0;
  for (auto _ : state) {
    session s(state, kind, pages * page);
    if (!s) return;
    auto task = make_task(s.dev(), pages, page, kind == memory_kind::backed);
    if (!s.check(task)) return;
    const std::string place =
        "@stillmap-bench-" + std::to_string(::getpid()) + '-' + std::to_string(++round);
    other_process receiver = start_receiver(place, kind);
    auto to = handoff::connection::connect(place, std::chrono::milliseconds(60'000));
    if (!s.check(to)) return;
    const tally before = s.now();
    stopwatch watch;
    const auto given =
        watch.time([&] { return handoff::send(s.dev(), *to, std::vector<std::string>{"task"}); });
    if (!s.check(given)) return;
    s.add(before);
    state.SetIterationTime(watch.seconds());
    spent.push_back(watch.seconds());
    if (!receiver.ended_well()) {
      state.SkipWithError("the other process did not find what was given");
      return;
    }
    const driver_counts made = s.now().counts - before.counts;
    state.counters["copied_bytes"] =
        static_cast<double>(made.bytes_on_device + made.bytes_to_device + made.bytes_to_host);
    state.counters["handles"] = static_cast<double>(given->pages);
  }
  // As of memcpy: Google Benchmark's own figure is the mean.
  const double each = median(std::move(spent));
  state.counters["median_ms"] = each * 1e3;
  state.counters["memcpy_ms"] = plain[0] * 1e3;
  state.counters["of_memcpy"] = each / plain[0];
  state.counters["of_memcpy_by_two"] = each / plain[1];
}

[[maybe_unused]] const bool registered = [] {
  const auto add = [](const char *name, std::size_t pages, std::size_t page, memory_kind kind) {
    add_case(name, 7, [=](auto &state) { handing_over(state, pages, page, kind); });
  };
  add("handoff/2_MiB", handles(), 2_MiB, memory_kind::backed);
  add("handoff/2_MiB_little_of_it_present", handles(), 2_MiB, memory_kind::lazy);
  add("handoff/8_MiB_little_of_it_present", handles(), 8_MiB, memory_kind::lazy);
  if (!smoke()) add("handoff/100_GiB", handles_of_100_gib, 64_MiB, memory_kind::lazy);
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
