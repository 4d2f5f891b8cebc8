// Device memory saved as an image and brought back, against copying a file of as many bytes; and an
// incremental image of memory of which one page in a hundred has changed, against digesting all of
// it once.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "bench/support/session.h"
#include "stillmap/snapshot/snapshot.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

const std::vector<std::string> tags{"benchmark"};

std::size_t total_bytes() {
  return smoke() ? 32_MiB : amount(2_GiB, 16_GiB);
}
std::string file_in(const std::string &folder, const char *name) {
  return folder + "/stillmap-snapshot-bench-" + std::to_string(::getpid()) + name;
}
std::string disk() {
  const char *const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

// Words that neither repeat nor compress.
void put_random(const device &d, device_address at, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(std::min<std::size_t>(bytes, 64_MiB) / 8);
  const context_guard guard(d.drv(), d.context());
  for (std::size_t done = 0; done < bytes; done += words.size() * 8) {
    for (std::uint64_t &w : words) w = random();
    static_cast<void>(d.drv().copy_to_device(at + done, words.data(), words.size() * 8));
  }
}

// A buffer of random bytes with the tag.
std::optional<growable_buffer> make_task(session &on, std::size_t bytes) {
  buffer_options options;
  options.tag = tags.front();
  options.reserve = bytes;
  auto b = growable_buffer::create(on.dev(), std::move(options));
  if (!on.check(b) || !on.check(b->resize(bytes))) return std::nullopt;
  put_random(on.dev(), b->address(), bytes, 1);
  return std::move(*b);
}

void save(benchmark::State &state, const std::string &folder, bool verify) {
  session on(state, memory_kind::backed, total_bytes());
  if (!on) return;
  const auto task = make_task(on, total_bytes());
  if (!task) return;
  const std::string path = file_in(folder, ".smi");
  snapshot::save_options how;
  how.image.verify = verify;
  for (auto _ : state) {
    stopwatch watch;
    watch.start();
    const auto w = snapshot::save(on.dev(), tags, path, how);
    watch.stop();
    ::unlink(path.c_str());
    if (!w) return state.SkipWithError(w.error().message().c_str());
    state.SetIterationTime(watch.seconds());
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

void restore(benchmark::State &state, const std::string &folder) {
  session on(state, memory_kind::backed, total_bytes());
  if (!on) return;
  auto task = make_task(on, total_bytes());
  if (!task) return;
  const std::string path = file_in(folder, ".smi");
  if (const auto w = snapshot::save(on.dev(), tags, path); !w) {
    return state.SkipWithError(w.error().message().c_str());
  }
  task.reset();
  for (auto _ : state) {
    stopwatch watch;
    watch.start();
    const auto r = snapshot::restore(on.dev(), path);
    watch.stop();
    if (!r) {
      state.SkipWithError(r.error().message().c_str());
      break;
    }
    state.SetIterationTime(watch.seconds());
  }
  ::unlink(path.c_str());
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

// What cp does, by read and write: from a file in memory to another one.
void copy_file(benchmark::State &state, const std::string &folder) {
  const std::string from = file_in(folder, ".from"), to = file_in(folder, ".to");
  const int in = ::open(from.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const std::vector<char> piece(2_MiB, 1);
  for (std::size_t at = 0; at < total_bytes(); at += piece.size()) {
    if (::write(in, piece.data(), piece.size()) != static_cast<ssize_t>(piece.size())) {
      ::unlink(from.c_str());
      return state.SkipWithError("no room");
    }
  }
  const std::unique_ptr<char[]> room(new char[2_MiB]);
  for (auto _ : state) {
    stopwatch watch;
    watch.start();
    const int out = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ::lseek(in, 0, SEEK_SET);
    ssize_t n = 0;
    while ((n = ::read(in, room.get(), 2_MiB)) > 0) {
      if (::write(out, room.get(), static_cast<std::size_t>(n)) != n) break;
    }
    watch.stop();
    ::close(out);
    ::unlink(to.c_str());
    state.SetIterationTime(watch.seconds());
    if (n != 0) {
      state.SkipWithError("no room");
      break;
    }
  }
  ::close(in);
  ::unlink(from.c_str());
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

std::size_t large() {
  return smoke() ? 64_MiB : amount(8_GiB, 32_GiB);
}

// One page in a hundred changes before each round.
void incremental(benchmark::State &state) {
  session on(state, memory_kind::backed, large());
  if (!on) return;
  const auto task = make_task(on, large());
  if (!task) return;
  const std::string base = file_in(disk(), ".base.smi"), next = file_in(disk(), ".next.smi");
  snapshot::save_options how;
  how.image.verify = false;
  const auto w = snapshot::save(on.dev(), tags, base, how);
  auto parent = image::reader::open(base);
  if (!w || !parent) {
    ::unlink(base.c_str());
    return state.SkipWithError("no room for the base");
  }
  how.image.parent = *parent;
  const std::size_t page = on.dev().can().page_bytes, pages = large() / page;
  double stored = 0, dirty = 0;
  std::uint64_t seed = 2;
  for (auto _ : state) {
    const std::size_t changed = std::max<std::size_t>(1, pages / 100);
    for (std::size_t i = 0; i < changed; ++i) {
      put_random(on.dev(), task->address() + i * (pages / changed) * page, page, ++seed);
    }
    stopwatch watch;
    watch.start();
    const auto i = snapshot::save(on.dev(), tags, next, how);
    watch.stop();
    ::unlink(next.c_str());
    if (!i) {
      state.SkipWithError(i.error().message().c_str());
      break;
    }
    state.SetIterationTime(watch.seconds());
    stored = static_cast<double>(i->stored_bytes);
    dirty = static_cast<double>(changed * page);
  }
  ::unlink(base.c_str());
  state.counters["stored/dirty"] = stored / dirty;
  state.SetBytesProcessed(static_cast<std::int64_t>(large()) * state.iterations());
}

// The same memory's digests, by as many threads, from host memory.
void digest_all(benchmark::State &state) {
  const std::size_t threads = std::min(std::thread::hardware_concurrency(), 8U);
  const std::size_t bytes = std::min<std::size_t>(large(), 1_GiB);
  auto *const memory = static_cast<std::byte *>(std::aligned_alloc(image::block_bytes, bytes));
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < bytes; ++i) memory[i] = static_cast<std::byte>(random());
  for (auto _ : state) {
    std::vector<std::thread> all;
    for (std::size_t t = 0; t < threads; ++t) {
      all.emplace_back([&, t] {
        for (std::size_t round = 0; round < large() / bytes; ++round) {
          for (std::size_t at = t * 2_MiB; at < bytes; at += threads * 2_MiB) {
            benchmark::DoNotOptimize(
                image::digest_of_contents({memory + at, std::min<std::size_t>(2_MiB, bytes - at)}));
          }
        }
      });
    }
    for (std::thread &t : all) t.join();
  }
  std::free(memory);
  state.SetBytesProcessed(static_cast<std::int64_t>(large()) * state.iterations());
}

[[maybe_unused]] const bool registered = [] {
  const auto add = [](const std::string &name, auto work) {
    benchmark::RegisterBenchmark(name.c_str(), work)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  };
  const std::string tmpfs = "/dev/shm";
  add("tmpfs|save", [=](auto &s) { save(s, tmpfs, true); });
  add("tmpfs|save, not read again", [=](auto &s) { save(s, tmpfs, false); });
  add("tmpfs|restore", [=](auto &s) { restore(s, tmpfs); });
  add("tmpfs|read and write", [=](auto &s) { copy_file(s, tmpfs); });
  add("disk|save, not read again", [](auto &s) { save(s, disk(), false); });
  add("disk|restore", [](auto &s) { restore(s, disk()); });
  add("incremental|1 % changed", incremental);
  benchmark::RegisterBenchmark("incremental|digest of all", digest_all)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
