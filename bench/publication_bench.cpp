// Publishing memory, and attaching it in 16 processes, compared with a plain copy of the same bytes in host
// memory in the same run. Each reader times its own attach(), and then reads the ends of every page. One
// reader is killed and started again: that is timed from the start of its process.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/median.h"
#include "bench/support/other_process.h"
#include "bench/support/session.h"
#include "bench/support/task_memory.h"
#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/holder.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

using namespace publication;
using clock = std::chrono::steady_clock;

constexpr const char *place_name = "STILLMAP_BENCH_READS_AT";
constexpr const char *begin_name = "STILLMAP_BENCH_BEGAN_NS";

std::size_t pages() {
  return smoke() ? 32 : amount(2_GiB, 8_GiB) / 2_MiB;
}
std::size_t readers() {
  return smoke() ? 2 : 16;
}

void raise_descriptors() {
  rlimit l{};
  if (::getrlimit(RLIMIT_NOFILE, &l) != 0) return;
  l.rlim_cur = l.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &l);
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch())
      .count();
}

double memcpy_seconds(std::size_t bytes) {
  const std::unique_ptr<unsigned char[]> from(new unsigned char[bytes]),
      to(new unsigned char[bytes]);
  std::memset(from.get(), 1, bytes);
  std::memset(to.get(), 2, bytes);
  std::vector<double> all(3);
  for (double &seconds : all) {
    stopwatch watch;
    watch.time([&] { std::memcpy(to.get(), from.get(), bytes); });
    seconds = watch.seconds();
    benchmark::ClobberMemory();
  }
  return median(std::move(all));
}

// Shared memory of the machine, in bytes: where hostcuda's exportable pages are.
double shared_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    double kib = 0;
    if (name == "Shmem:" && file >> kib) return kib * 1024;
  }
  return 0;
}

// A folder for what the readers report: a file each.
class reports {
 public:
  reports()
      : folder_(std::filesystem::temp_directory_path() /
                ("stillmap-bench-" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(folder_);
  }
  ~reports() { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }
  void let_end() const { std::ofstream(folder_ / "end") << "1"; }
  // Waits for the report of that process: milliseconds of attach(), and since its start.
  std::pair<double, double> of(pid_t pid) const {
    for (int i = 0; i < 60'000; ++i) {
      std::ifstream in(folder_ / std::to_string(pid));
      double attach = 0, start = 0;
      if (in >> attach >> start) return {attach, start};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }

 private:
  std::filesystem::path folder_;
};

// A reader: attaches, reports, and stays until it is told to end.
[[noreturn]] void read_there(const char *place) {
  driver *const drv = the_driver();
  auto d = drv != nullptr ? device::open(*drv, 0) : result<device>(tl::unexpected<error>(error{}));
  if (!d) ::_exit(2);
  const std::filesystem::path folder = std::getenv("STILLMAP_BENCH_REPORTS");
  stopwatch watch;
  const auto read = watch.time([&] { return attach(*d, place, "model"); });
  if (!read) {
    std::fprintf(stderr, "the reader: %s\n", read.error().message().c_str());
    ::_exit(3);
  }
  const double since_start =
      static_cast<double>(now_ns() - std::atoll(std::getenv(begin_name))) / 1e6;
  const context_guard guard(*drv, d->context());
  for (const auto &p : read->layout().places) {
    for (const device_address there : {p.at, p.at + (2_MiB - 1)}) {
      unsigned char seen = 0;
      if (!drv->copy_to_host(&seen, there, 1) || seen != written_byte) ::_exit(4);
    }
  }
  // Reading is no part of attaching: the next reader is started after it.
  const std::filesystem::path report = folder / std::to_string(::getpid());
  std::ofstream(report.string() + ".new") << watch.seconds() * 1e3 << ' ' << since_start << '\n';
  std::filesystem::rename(report.string() + ".new", report);
  while (!std::filesystem::exists(folder / "end")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::_exit(0);
}

// Before main, since the other process is this program again.
[[maybe_unused]] const bool is_reader = [] {
  const char *const place = std::getenv(place_name);
  if (place != nullptr) read_there(place);
  return false;
}();

void start_reader(std::list<other_process> &into, const std::string &place, const reports &r) {
  into.emplace_back(std::vector<std::string>{
      std::string(place_name) + '=' + place,
      std::string(begin_name) + '=' + std::to_string(now_ns()),
      "STILLMAP_BENCH_REPORTS=" + r.folder(),
      std::string("HOSTCUDA=") + hostcuda_settings(name_of(memory_kind::backed))});
}

void publishing(benchmark::State &state) {
  raise_descriptors();
  const std::size_t bytes = pages() * 2_MiB;
  const double copied = memcpy_seconds(bytes);
  for (auto _ : state) {
    session s(state, memory_kind::backed, bytes);
    if (!s) return;
    page_pool_options options;
    options.exportable = handle_type::posix_fd;
    auto task = make_task_memory(s.dev(), pages(), options);
    if (!s.check(task) || !s.check(write_bytes(s.dev(), task_begin, bytes))) return;
    const std::string place = "@stillmap-bench-publication-" + std::to_string(::getpid());
    const auto held = holder::create(place);
    if (!s.check(held)) return;
    publish_options no_digests;
    no_digests.digests = false;
    stopwatch watch;
    const auto published = watch.time([&] {
      return publish(s.dev(), place, "model", std::vector<std::string>{"task"}, no_digests);
    });
    if (!s.check(published)) return;
    state.SetIterationTime(watch.seconds());
    const double before = shared_bytes();
    const reports r;
    std::list<other_process> all;
    std::vector<double> attach_ms;
    for (std::size_t i = 0; i < readers(); ++i) {
      start_reader(all, place, r);
      attach_ms.push_back(r.of(all.back().pid()).first);
    }
    state.counters["shared_memory_growth"] = (shared_bytes() - before) / static_cast<double>(bytes);
    ::kill(all.front().pid(), SIGKILL);
    all.front().ended_well();
    all.pop_front();
    start_reader(all, place, r);
    state.counters["restart_ms"] = r.of(all.back().pid()).second;
    r.let_end();
    for (other_process &p : all) {
      if (!p.ended_well()) state.SkipWithError("a reader did not find what was published");
    }
    const double each = median(attach_ms);
    state.counters["attach_ms"] = each;
    state.counters["memcpy_ms"] = copied * 1e3;
    state.counters["of_memcpy"] = each / (copied * 1e3);
  }
  state.counters["pages"] = static_cast<double>(pages());
  state.counters["readers"] = static_cast<double>(readers());
}

[[maybe_unused]] const bool registered = [] {
  add_case("publication/16_readers", 1, publishing);
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
