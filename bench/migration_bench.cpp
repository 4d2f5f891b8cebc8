// Migrating a task that writes its memory meanwhile, compared in the same run with a plain copy of
// as many bytes between devices over an equal link, the task stopped: the downtime, and the total
// time. It asks for 300 ms, or, where the sender refuses that because scanning the memory takes longer, for a quarter more
// than what the sender says it takes. Both ends run on this machine and share its processors. Both destinations have used as much
// device memory before, and both ends keep released memory, because populating and releasing memory
// costs time on the host that a device does not need.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/support/kernels.h"
#include "bench/support/median.h"
#include "bench/support/other_process.h"
#include "bench/support/session.h"
#include "bench/support/task_memory.h"
#include "stillmap/checkpoint/migration/migration.h"
#include "stillmap/checkpoint/migration/tls.h"
#if __has_include("stillmap/checkpoint/ucx/data_transport.h") && __has_include(<ucp/api/ucp.h>)
#define STILLMAP_BENCH_UCX 1
#include "stillmap/checkpoint/ucx/data_transport.h"
#endif
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::bench {
namespace {

using checkpoint::restored_memory;
using std::chrono::milliseconds;

constexpr const char *part_name = "STILLMAP_BENCH_DESTINATION";
constexpr const char *folder_name = "STILLMAP_BENCH_FOLDER";
constexpr std::size_t piece = 256_KiB;
constexpr std::size_t channels = 2;
constexpr std::chrono::milliseconds wait{60'000};

std::size_t total_bytes() {
  return smoke() ? 64_MiB : amount(6_GiB, 8_GiB);
}

template <class T>
T must(result<T> r) {
  if (r) return std::move(*r);
  std::fprintf(stderr, "migration_bench: %s\n", r.error().message().c_str());
  ::_exit(4);
}
void must(const status &s) {
  if (s) return;
  std::fprintf(stderr, "migration_bench: %s\n", s.error().message().c_str());
  ::_exit(5);
}

// The processor time of this process and of those that have ended.
double cpu_seconds() {
  double all = 0;
  for (const auto whose : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    ::getrusage(whose, &used);
    for (const timeval &t : {used.ru_utime, used.ru_stime}) {
      all += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return all;
}

migration::credentials credentials_in(const std::string &folder, const char *mine,
                                      const char *theirs) {
  const std::string here = folder + '/';
  auto c = must(migration::load_credentials(here + mine + ".crt", here + mine + ".key"));
  const auto other = must(migration::load_credentials(here + theirs + ".crt", ""));
  c.fingerprints = {must(migration::fingerprint_of(other))};
  return c;
}

restored_memory make_memory(const device &d) {
  return must(make_task_memory(d, total_bytes() / d.capabilities().page_bytes));
}

// A thread of the plain copy.
template <class Work>
void each_piece(const device &d, device_address begin, std::size_t share, const Work &work) {
  const context_guard guard(d.driver(), d.context());
  for (std::size_t n = 0; n < total_bytes() / channels; n += piece) {
    work(begin + (share * (total_bytes() / channels) + n));
  }
}

// The other process: a receiver, or a sink for the plain copy.
[[noreturn]] void be(const std::string &part, const std::string &folder) {
  driver *const drv = the_driver();
  const device d = must(device::open(*drv, 0));
  std::optional<restored_memory> memory(make_memory(d));
  if (part != "sink") memory.reset();
  // It zeroes what it had, at a few GB/s.
  std::this_thread::sleep_for(std::chrono::milliseconds(smoke() ? 1 : total_bytes() >> 21));
  auto at =
      must(migration::create_tls_acceptor("127.0.0.1:0", credentials_in(folder, "there", "here")));
  std::ofstream(folder + "/where.new") << at->address();
  std::rename((folder + "/where.new").c_str(), (folder + "/where").c_str());
  if (part == "sink") {
    std::vector<std::thread> readers;
    for (std::size_t i = 0; i < channels; ++i) {
      std::shared_ptr<migration::channel> c = must(at->accept(wait));
      must(c->handshake(wait));
      readers.emplace_back([&d, c] {
        std::vector<std::byte> room(piece);
        must(c->receive({room.data(), 1}, wait));
        const auto share = std::to_integer<std::size_t>(room[0]);
        each_piece(d, task_begin, share, [&](device_address to) {
          must(c->receive(room, wait));
          must(d.driver().copy_to_device(to, room.data(), piece));
        });
        must(c->send({room.data(), 1}, wait));
      });
    }
    for (std::thread &t : readers) t.join();
    ::_exit(0);
  }
  migration::receive_options how;
  how.records = folder + "/records_there";
  how.read_back = part != "not reading back";
#ifdef STILLMAP_BENCH_UCX
  if (part == "tcp" || part == "shm") {
    how.data_acceptor = must(ucx::create_data_acceptor("127.0.0.1:0", {part}));
  }
#endif
  auto r = must(migration::receiver::create(d, std::move(at), how));
  const auto came = r.receive(wait);
  ::_exit(came && came->memory.bytes() == total_bytes() ? 0 : 6);
}

// Before main, since the other process is this program again.
[[maybe_unused]] const bool is_destination = [] {
  const char *const part = std::getenv(part_name), *const folder = std::getenv(folder_name);
  if (part != nullptr && folder != nullptr) be(part, folder);
  return false;
}();

// A folder with certificates and records for both, and the other process.
class other_side {
 public:
  explicit other_side(const std::string &part) {
    char name[] = "/tmp/stillmap-bench-XXXXXX";
    folder_ = ::mkdtemp(name);
    for (const char *const end : {"here", "there"}) {
      const auto c = must(migration::make_self_signed(end));
      std::ofstream(folder_ + '/' + end + ".crt") << c.certificate;
      std::ofstream(folder_ + '/' + end + ".key") << c.key;
      ::chmod((folder_ + '/' + end + ".key").c_str(), 0600);
      ::mkdir((folder_ + "/records_" + end).c_str(), 0700);
    }
    process_.emplace(
        std::vector{std::string(part_name) + '=' + part, std::string(folder_name) + '=' + folder_});
  }
  other_side(const other_side &) = delete;
  ~other_side() {
    process_.reset();
    std::error_code left;
    std::filesystem::remove_all(folder_, left);
  }

  const std::string &folder() const { return folder_; }
  std::string address(const char *file) const {
    std::string where;
    while (where.empty()) {
      std::ifstream in(folder_ + '/' + file);
      std::getline(in, where);
      if (where.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return where;
  }
  std::unique_ptr<migration::transport> way() const {
    const std::string where = address("where");
    return must(migration::create_tls_transport(where, credentials_in(folder_, "here", "there")));
  }
  bool good() { return process_->ended_well(); }

 private:
  std::string folder_;
  std::optional<other_process> process_;
};

// By as many threads, over as many links.
double seconds_of_plain_copy(const device &d) {
  other_side sink("sink");
  const auto to = sink.way();
  std::vector<std::shared_ptr<migration::channel>> links;
  for (std::size_t i = 0; i < channels; ++i) {
    links.emplace_back(must(to->connect(wait)));
    must(links.back()->handshake(wait));
  }
  stopwatch watch;
  watch.start();
  std::vector<std::thread> writers;
  for (std::size_t i = 0; i < channels; ++i) {
    writers.emplace_back([&, i] {
      std::vector<std::byte> room(piece, static_cast<std::byte>(i));
      must(links[i]->send({room.data(), 1}, wait));
      each_piece(d, task_begin, i, [&](device_address from) {
        must(d.driver().copy_to_host(room.data(), from, piece));
        must(links[i]->send(room, wait));
      });
      must(links[i]->receive({room.data(), 1}, wait));
    });
  }
  for (std::thread &t : writers) t.join();
  watch.stop();
  return watch.seconds();
}

restored_memory make_task(const device &d) {
  restored_memory made = make_memory(d);
  const context_guard guard(d.driver(), d.context());
  std::vector<std::uint64_t> noise(piece / 8);
  std::uint64_t next = 1;
  for (std::size_t n = 0; n < total_bytes(); n += piece) {
    for (std::uint64_t &word : noise)
      word = next = next * 6364136223846793005u + 1442695040888963407u;
    must(d.driver().copy_to_device(task_begin + n, noise.data(), piece));
  }
  return made;
}

// A kernel writes one chunk after the other, so many bytes a second.
class writer {
 public:
  writer(const device &d, double bytes_per_second)
      : thread_([this, d, bytes_per_second] {
          const context_guard guard(d.driver(), d.context());
          const kernels with = must(kernels::load(d.driver()));
          const stream s = must(stream::create(d));
          const auto began = std::chrono::steady_clock::now();
          for (std::size_t n = 0; !stop_; ++n) {
            must(with.fill({task_begin + n * piece % total_bytes(), piece},
                           static_cast<std::uint32_t>(n + 1), s.get()));
            must(s.synchronize());
            std::this_thread::sleep_until(
                began +
                std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(
                    static_cast<double>((n + 1) * piece) / bytes_per_second)));
          }
        }) {}
  ~writer() { stop(); }
  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// `slower`: a limit of the link in bytes a second; 0: none.
void moving(benchmark::State &state, const char *part, std::uint64_t slower) {
  const double bytes = static_cast<double>(total_bytes());
  std::vector<double> plains, wholes, pauses, parts, rounds, went, asked, expected, cpu;
  for (auto _ : state) {
    session s(state, memory_kind::backed, 2 * total_bytes());  // for both ends
    if (!s) return;
    const restored_memory task = make_task(s.dev());
    double plain = seconds_of_plain_copy(s.dev());
    if (slower != 0) plain = std::max(plain, bytes / static_cast<double>(slower));
    other_side there(part);
    const auto to = there.way();
    writer writes(s.dev(), 0.1 * bytes / plain);
    migration::send_options how;
    how.records = there.folder() + "/records_here";
#ifdef STILLMAP_BENCH_UCX
    if (std::string(part) == "tcp" || std::string(part) == "shm") {
      how.data_connector = must(ucx::create_data_connector({part}));
    }
#endif
    how.channels = channels;
    how.bytes_per_second = slower;
    how.max_downtime = std::chrono::milliseconds(300);
    if (!smoke()) how.on_no_convergence = migration::no_convergence::cancel;
    how.quiesce = [&]() -> status {
      writes.stop();
      return {};
    };
    double expected_now = 0;
    how.on_progress = [&](const migration::progress &p) {
      if (p.stopping) expected_now = p.expected_downtime.count();
    };
    const auto send = [&] {
      return migration::sender(s.dev(), std::vector<std::string>{"task"}, how).send(*to);
    };
    const double cpu_before = cpu_seconds();
    migration::sent_memory sent = send();
    for (int more = 3; more > 0 && sent.failure && sent.failure->unit == error_unit::milliseconds;
         --more) {
      how.max_downtime = std::chrono::milliseconds(sent.failure->value * 5 / 4);
      sent = send();
    }
    if (sent.owner != migration::owner::destination) {
      s.fail(*sent.failure);
      return;
    }
    if (sent.data_fallback) {
      s.fail(*sent.data_fallback);
      return;
    }
    if (!there.good()) {
      state.SkipWithError("the other process did not find what was sent");
      return;
    }
    state.SetIterationTime(sent.elapsed.count());
    cpu.push_back(cpu_seconds() - cpu_before);
    plains.push_back(plain);
    wholes.push_back(sent.elapsed.count());
    pauses.push_back(sent.downtime.count());
    parts.push_back(sent.downtime.count() / sent.elapsed.count());
    rounds.push_back(static_cast<double>(sent.rounds));
    went.push_back(static_cast<double>(sent.bytes_sent) / bytes);
    asked.push_back(std::chrono::duration<double>(how.max_downtime).count());
    expected.push_back(expected_now);
  }
  const auto say = [&](const char *name, double value) { state.counters[name] = value; };
  say("pause_ms", median(pauses) * 1e3);
  say("longest_pause_ms",
      pauses.empty() ? 0 : *std::max_element(pauses.begin(), pauses.end()) * 1e3);
  say("asked_ms", median(asked) * 1e3);
  say("expected_ms", median(expected) * 1e3);
  double worst = 0;
  for (std::size_t i = 0; i < pauses.size(); ++i) worst = std::max(worst, pauses[i] / asked[i]);
  say("longest_of_asked", worst);
  say("pause_of_all", median(parts));
  say("of_plain_copy", median(wholes) / median(plains));
  say("rounds", median(rounds));
  say("sent_of_all", median(went));
  say("cpu_s", median(cpu));  // of both ends, the receiver's start and end included
  say("GB_per_s", bytes / median(wholes) / 1e9);
  say("plain_copy_ms", median(plains) * 1e3);
}

// One channel between two threads of this process, or memcpy in their place: pieces of a chunk's size.
void passing(benchmark::State &state, const std::string &over) {
  constexpr std::size_t chunk = 512_KiB;
  const std::size_t bytes = smoke() ? 8_MiB : 1_GiB;
  std::vector<std::byte> from(chunk, std::byte{1}), into(chunk);
  std::unique_ptr<migration::acceptor> at;
  std::unique_ptr<migration::transport> to;
  std::array<std::unique_ptr<migration::channel>, 2> ends;
  if (over == "tls") {
    std::array<migration::credentials, 2> c{must(migration::make_self_signed("here")),
                                            must(migration::make_self_signed("there"))};
    c[0].fingerprints = {must(migration::fingerprint_of(c[1]))};
    c[1].fingerprints = {must(migration::fingerprint_of(c[0]))};
    at = must(migration::create_tls_acceptor("127.0.0.1:0", c[1]));
    to = must(migration::create_tls_transport(at->address(), c[0]));
  }
#ifdef STILLMAP_BENCH_UCX
  if (over == "tcp" || over == "shm") {
    at = must(ucx::create_data_acceptor("127.0.0.1:0", {over}));
    to = must(must(ucx::create_data_connector({over}))->create_transport(at->address()));
  }
#endif
  if (at) {
    std::thread accepting([&] {
      ends[1] = must(at->accept(wait));
      must(ends[1]->handshake(wait));
    });
    ends[0] = must(to->connect(wait));
    must(ends[0]->handshake(wait));
    accepting.join();
  }
  std::vector<double> rates, cpu;
  for (auto _ : state) {
    const double cpu_before = cpu_seconds();
    stopwatch watch;
    watch.start();
    if (!at) {
      for (std::size_t n = 0; n < bytes; n += chunk) {
        std::memcpy(into.data(), from.data(), chunk);
        benchmark::ClobberMemory();
      }
    } else {
      std::thread sending([&] {
        for (std::size_t n = 0; n < bytes; n += chunk) must(ends[0]->send(from, wait));
      });
      for (std::size_t n = 0; n < bytes; n += chunk) must(ends[1]->receive(into, wait));
      sending.join();
    }
    watch.stop();
    state.SetIterationTime(watch.seconds());
    rates.push_back(static_cast<double>(bytes) / watch.seconds() / 1e9);
    cpu.push_back(cpu_seconds() - cpu_before);
  }
  state.counters["GB_per_s"] = median(rates);
  state.counters["cpu_s"] = median(cpu);
}

[[maybe_unused]] const bool registered = [] {
  const std::string keep = "keep=" + std::to_string(total_bytes());
  ::setenv("HOSTCUDA", hostcuda_settings(keep).c_str(), 1);
  const auto add = [](const char *name, const char *part, std::uint64_t slower) {
    const int iterations = slower != 0 ? 1 : 3;  // a link with a rate is steady
    add_case(name, iterations, [=](benchmark::State &s) { moving(s, part, slower); });
  };
  add("migration/loopback", "reading back", 0);
  add("migration/loopback_without_reading_back", "not reading back", 0);
  std::vector<std::string> channels_over{"memcpy", "tls"};
#ifdef STILLMAP_BENCH_UCX
  add("migration/loopback_ucx_tcp", "tcp", 0);
  add("migration/loopback_ucx_shm", "shm", 0);
  channels_over.insert(channels_over.end(), {"tcp", "shm"});
#endif
  for (const std::string &over : channels_over) {
    add_case(("data_channel/" + over).c_str(), 5,
             [over](benchmark::State &s) { passing(s, over); });
  }
  if (smoke()) return true;
  add("migration/link_of_2_Gbit", "reading back", 250'000'000);
  add("migration/link_of_10_Gbit", "reading back", 1'250'000'000);
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
