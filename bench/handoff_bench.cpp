// Memory handed over to another process, against a plain copy of the same bytes in host memory by
// two threads, in the same run. What is timed is all of give(): from the greeting until nothing is
// mapped here any more.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/session.h"
#include "stillmap/handoff/handoff.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/page_pool.h"

extern char **environ;

namespace stillmap::bench {
namespace {

using checkpoint::landed_memory;
using checkpoint::memory_layout;

constexpr const char *place_name = "STILLMAP_BENCH_TAKES_AT";
// Far from where a kernel puts things, so that the other process has the addresses free too.
constexpr std::uint64_t begin_at = 0x2000'0000'0000;
constexpr unsigned char filling = 0x5a;

std::size_t total_bytes() {
  return smoke() ? 64_MiB : 4_GiB;
}

// hostcuda holds a descriptor for each page that others may have.
void raise_descriptors() {
  rlimit l{};
  if (::getrlimit(RLIMIT_NOFILE, &l) != 0) return;
  l.rlim_cur = l.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &l);
}

double seconds_of_memcpy() {
  const std::size_t bytes = total_bytes(), half = bytes / 2;
  const std::unique_ptr<unsigned char[]> from(new unsigned char[bytes]),
      to(new unsigned char[bytes]);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  std::vector<double> all;
  for (int i = 0; i < 5; ++i) {
    stopwatch watch;
    watch.start();
    std::thread other([&] { std::memcpy(to.get() + half, from.get() + half, half); });
    std::memcpy(to.get(), from.get(), half);
    other.join();
    watch.stop();
    all.push_back(watch.seconds());
    benchmark::ClobberMemory();
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// The other process: takes, looks at the ends of every page, and says by its exit what it found.
[[noreturn]] void take_there(const char *place) {
  raise_descriptors();
  driver *const drv = the_driver();
  auto d = drv != nullptr ? device::open(*drv, 0) : result<device>(tl::unexpected<error>(error{}));
  auto at = handoff::listener::create(place);
  if (!d || !at) ::_exit(2);
  auto from = at->accept(handoff::patience(60'000));
  if (!from) ::_exit(3);
  const auto taken = handoff::take(*d, *from);
  if (!taken) {
    std::fprintf(stderr, "the taker: %s\n", taken.error().message().c_str());
    ::_exit(4);
  }
  const driver_counts counts = drv->counts();
  bool good = counts.bytes_on_device == 0 && counts.bytes_to_device == 0;
  const context_guard guard(*drv, d->context());
  for (const memory_layout::place &p : taken->layout().places) {
    const std::size_t bytes = taken->layout().pages[p.page].bytes;
    for (const device_address there : {p.at, p.at + (bytes - 1)}) {
      unsigned char seen = 0;
      good = good && drv->copy_to_host(&seen, there, 1) && seen == filling;
    }
  }
  ::_exit(good ? 0 : 5);
}

// Before main, since the other process is this program again: forking is not for users of CUDA.
[[maybe_unused]] const bool is_taker = [] {
  const char *const place = std::getenv(place_name);
  if (place != nullptr) take_there(place);
  return false;
}();

pid_t start_taker(const std::string &place) {
  const std::string word = std::string(place_name) + '=' + place;
  std::vector<char *> environment;
  for (char **e = environ; *e != nullptr; ++e) environment.push_back(*e);
  environment.push_back(const_cast<char *>(word.c_str()));
  environment.push_back(nullptr);
  char self[] = "/proc/self/exe";
  char *arguments[] = {self, nullptr};
  const pid_t child = ::fork();
  if (child == 0) {
    ::execve(self, arguments, environment.data());
    ::_exit(6);
  }
  return child;
}

// So many bytes in pages of that size, all of them written.
result<landed_memory> make_task(const device &d, std::size_t page) {
  memory_layout l;
  const std::size_t pages = total_bytes() / page;
  page_pool_options options;
  options.page_bytes = page;
  options.exportable = handle_type::posix_fd;
  options.keep_free = 0;
  auto pool = page_pool::create(d, options);
  if (!pool) return tl::unexpected(pool.error());
  std::vector<page_ref> got;
  if (status s = (*pool)->acquire(pages, got); !s) return tl::unexpected(s.error());
  l.blocks = {{{device_address(begin_at), total_bytes()}, "task"}};
  l.pages.assign(pages, {page, (*pool)->properties()});
  l.access = {{{on_device(d.ordinal()), access_mode::read_write}}};
  for (std::size_t i = 0; i < pages; ++i) {
    l.places.push_back({device_address(begin_at + i * page), static_cast<std::uint32_t>(i), 0});
  }
  auto made = landed_memory::reserve(d, std::move(l));
  if (!made) return made;
  if (status s = made->map(got); !s) return tl::unexpected(s.error());
  const context_guard guard(d.drv(), d.context());
  status s = d.drv().set_bytes_async(device_address(begin_at), filling, total_bytes(), nullptr);
  if (s) s = d.drv().synchronize_context();
  if (!s) return tl::unexpected(s.error());
  return made;
}

void handing_over(benchmark::State &state, std::size_t page) {
  raise_descriptors();
  const double plain = seconds_of_memcpy();
  double spent = 0;
  int round = 0;
  for (auto _ : state) {
    session s(state, memory_kind::backed, total_bytes());
    if (!s) return;
    auto task = make_task(s.dev(), page);
    if (!s.check(task)) return;
    const std::string place =
        "@stillmap-bench-" + std::to_string(::getpid()) + '-' + std::to_string(++round);
    const pid_t taker = start_taker(place);
    auto to = handoff::connection::connect(place, handoff::patience(60'000));
    if (!s.check(to)) return;
    const tally before = s.now();
    stopwatch watch;
    watch.start();
    const auto given = handoff::give(s.dev(), *to, {"task"});
    watch.stop();
    if (!s.check(given)) return;
    s.add(before);
    state.SetIterationTime(watch.seconds());
    spent += watch.seconds();
    int how = 0;
    ::waitpid(taker, &how, 0);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0) {
      state.SkipWithError("the other process did not find what was given");
      return;
    }
    const driver_counts made = s.now().counts - before.counts;
    state.counters["copied_bytes"] =
        static_cast<double>(made.bytes_on_device + made.bytes_to_device + made.bytes_to_host);
    state.counters["handles"] = static_cast<double>(given->pages);
  }
  const double each = spent / static_cast<double>(std::max<std::int64_t>(state.iterations(), 1));
  state.counters["memcpy_ms"] = plain * 1e3;
  state.counters["of_memcpy"] = each / plain;
}

[[maybe_unused]] const bool registered = [] {
  for (const std::size_t page : {2_MiB, 8_MiB}) {
    benchmark::RegisterBenchmark(("handoff/" + std::to_string(page >> 20) + "_MiB").c_str(),
                                 [page](benchmark::State &state) { handing_over(state, page); })
        ->Iterations(smoke() ? 1 : 3)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
