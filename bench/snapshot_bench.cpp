// Device memory saved as an image and restored, compared with copying or writing a file of the same
// size; and an incremental image after one page in a hundred has changed, compared with digesting
// all of the memory once.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "bench/support/median.h"
#include "bench/support/session.h"
#include "stillmap/checkpoint/snapshot/chunk_digests.h"
#include "stillmap/checkpoint/snapshot/snapshot.h"
#include "stillmap/vmm/context.h"

namespace stillmap::bench {
namespace {

const std::vector<std::string> tags{"benchmark"};

std::size_t total_bytes() {
  return smoke() ? 32_MiB : amount(2_GiB, 16_GiB);
}

// Words that neither repeat nor compress.
void put_random(const device &d, device_address at, std::size_t bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words(std::min<std::size_t>(bytes, 64_MiB) / 8);
  const context_guard guard(d.driver(), d.context());
  for (std::size_t done = 0; done < bytes; done += words.size() * 8) {
    for (std::uint64_t &w : words) w = random();
    static_cast<void>(d.driver().copy_to_device(at + done, words.data(), words.size() * 8));
  }
}

// A buffer of random bytes with the tag.
std::optional<growable_buffer> make_task(session &on, std::size_t bytes) {
  auto b = make_buffer(on.dev(), bytes, tags.front());
  if (!on.check(b)) return std::nullopt;
  put_random(on.dev(), b->address(), bytes, 1);
  return std::move(*b);
}

void restore(benchmark::State &state, const std::string &folder) {
  session on(state, memory_kind::backed, total_bytes());
  if (!on) return;
  auto task = make_task(on, total_bytes());
  if (!task) return;
  const std::string path = file_for_bench(folder, ".smi");
  if (const auto w = snapshot::save(on.dev(), tags, path); !w) {
    return state.SkipWithError(w.error().message().c_str());
  }
  task.reset();
  for (auto _ : state) {
    stopwatch watch;
    const auto r = watch.time([&] { return snapshot::restore(on.dev(), path); });
    if (!r) {
      state.SkipWithError(r.error().message().c_str());
      break;
    }
    state.SetIterationTime(watch.seconds());
  }
  ::unlink(path.c_str());
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

// A file of the same size, copied or written without Stillmap.
class plain_file {
 public:
  plain_file(std::string folder, std::size_t bytes)
      : from_(file_for_bench(folder, ".from")), to_(file_for_bench(folder, ".to")), bytes_(bytes) {
    std::memset(room_.get(), 1, piece);
  }
  ~plain_file() {
    if (in_ >= 0) ::close(in_);
    ::unlink(from_.c_str());
  }
  plain_file(const plain_file &) = delete;
  plain_file &operator=(const plain_file &) = delete;

  // What cp does, by read and write.
  bool copy() {
    if (in_ < 0 && !make()) return false;
    const int out = ::open(to_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ::lseek(in_, 0, SEEK_SET);
    ssize_t n = 0;
    while ((n = ::read(in_, room_.get(), 2_MiB)) > 0) {
      if (::write(out, room_.get(), static_cast<std::size_t>(n)) != n) break;
    }
    ::close(out);
    return n == 0;
  }
  // What dd with oflag=direct conv=fsync does, from memory.
  bool write_direct() const {
    const int out = ::open(to_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    bool good = out >= 0;
    for (std::size_t at = 0; good && at < bytes_; at += piece) {
      good = ::write(out, room_.get(), piece) == static_cast<ssize_t>(piece);
    }
    good = good && ::fsync(out) == 0;
    if (out >= 0) ::close(out);
    return good;
  }
  void remove_copy() const { ::unlink(to_.c_str()); }

 private:
  static constexpr std::size_t piece = 16_MiB;
  bool make() {
    in_ = ::open(from_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    for (std::size_t at = 0; at < bytes_; at += piece) {
      if (::write(in_, room_.get(), piece) != static_cast<ssize_t>(piece)) return false;
    }
    return true;
  }
  struct by_free {
    void operator()(void *at) const { std::free(at); }
  };
  const std::string from_, to_;
  const std::size_t bytes_;
  const std::unique_ptr<void, by_free> room_{std::aligned_alloc(image::block_bytes, piece)};
  int in_ = -1;
};

// Times `what`, which returns false if it failed.
template <class What>
bool timed(std::vector<double> &into, What &&what) {
  stopwatch watch;
  const bool good = watch.time(what);
  into.push_back(watch.seconds());
  return good;
}

// All in turn, so that other load on the machine affects all alike; medians.
void save_beside_files(benchmark::State &state, const std::string &folder, bool on_disk) {
  session on(state, memory_kind::backed, total_bytes());
  if (!on) return;
  const auto task = make_task(on, total_bytes());
  if (!task) return;
  const std::string path = file_for_bench(folder, ".smi");
  const auto save = [&](bool verify) {
    snapshot::save_options how;
    how.image.verify = verify;
    const auto w = snapshot::save(on.dev(), tags, path, how);
    if (!w) state.SkipWithError(w.error().message().c_str());
    return w.has_value();
  };
  plain_file plain(folder, total_bytes());
  std::vector<double> saves, unread, files;
  const std::array<std::function<bool()>, 3> ways{
      [&] { return timed(unread, [&] { return save(false); }); },
      [&] { return timed(files, [&] { return on_disk ? plain.write_direct() : plain.copy(); }); },
      [&] { return timed(saves, [&] { return save(true); }); }};
  // Each is first equally often, because the first may fetch memory for the others.
  for (std::size_t first = 0; auto _ : state) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (!ways[(first + i) % ways.size()]()) {
        return state.SkipWithError("a file could not be written");
      }
      ::unlink(path.c_str());
      plain.remove_copy();
    }
    ++first;
    state.SetIterationTime(unread.back());
  }
  const double file = median(files);
  state.counters["save_ms"] = median(saves) * 1e3;
  state.counters["unread_ms"] = median(unread) * 1e3;
  state.counters[on_disk ? "direct_ms" : "cp_ms"] = file * 1e3;
  state.counters[on_disk ? "of_direct" : "of_cp"] = file / median(saves);
  state.counters[on_disk ? "unread_of_direct" : "unread_of_cp"] = file / median(unread);
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

std::size_t large() {
  return smoke() ? 64_MiB : amount(8_GiB, 32_GiB);
}

// One page in a hundred changes before each round. Compared with one digest of all the memory.
void incremental(benchmark::State &state) {
  session on(state, memory_kind::backed, large());
  if (!on) return;
  const auto task = make_task(on, large());
  if (!task) return;
  const std::string base = file_for_bench(temporary_folder(), ".base.smi"),
                    next = file_for_bench(temporary_folder(), ".next.smi");
  snapshot::save_options how;
  how.image.verify = false;
  const auto w = snapshot::save(on.dev(), tags, base, how);
  auto parent = image::reader::open(base);
  auto digester = snapshot::chunk_digester::create(on.dev(), {});
  if (!w || !parent || !digester) {
    ::unlink(base.c_str());
    return state.SkipWithError("no room for the base, or no digests");
  }
  how.image.parent = *parent;
  const std::size_t page = on.dev().capabilities().page_bytes, pages = large() / page;
  std::vector<virtual_range> chunks;
  for (std::size_t at = 0; at < large(); at += parent->superblock().chunk_bytes) {
    chunks.push_back({task->address() + at, parent->superblock().chunk_bytes});
  }
  double stored = 0, dirty = 0;
  std::uint64_t seed = 2;
  std::vector<double> saves, digests;
  for (auto _ : state) {
    const std::size_t changed = std::max<std::size_t>(1, pages / 100);
    for (std::size_t i = 0; i < changed; ++i) {
      put_random(on.dev(), task->address() + i * (pages / changed) * page, page, ++seed);
    }
    result<image::written> i;
    bool good = timed(saves, [&] {
      i = snapshot::save(on.dev(), tags, next, how);
      return i.has_value();
    });
    ::unlink(next.c_str());
    good = good && timed(digests, [&] { return digester->digests_of(chunks).has_value(); });
    if (!good) {
      state.SkipWithError(i ? "no digests" : i.error().message().c_str());
      break;
    }
    state.SetIterationTime(saves.back());
    stored = static_cast<double>(i->stored_bytes);
    dirty = static_cast<double>(changed * page);
  }
  ::unlink(base.c_str());
  state.counters["save_ms"] = median(saves) * 1e3;
  state.counters["digests_ms"] = median(digests) * 1e3;
  state.counters["of_digests"] = median(saves) / median(digests);
  state.counters["stored/dirty"] = stored / dirty;
  state.SetBytesProcessed(static_cast<std::int64_t>(large()) * state.iterations());
}

// Digests of plain host memory by as many threads: an upper limit for the digests above.
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
            benchmark::DoNotOptimize(image::digest_of_contents(
                {}, {memory + at, std::min<std::size_t>(2_MiB, bytes - at)}));
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
  const std::string tmpfs = "/dev/shm";
  add_case("tmpfs/save", 6, [=](auto &s) { save_beside_files(s, tmpfs, false); });
  add_case("tmpfs/restore", 3, [=](auto &s) { restore(s, tmpfs); });
  add_case("disk/save", 9, [](auto &s) { save_beside_files(s, temporary_folder(), true); });
  add_case("disk/restore", 3, [](auto &s) { restore(s, temporary_folder()); });
  add_case("incremental/1_percent_changed", 15, incremental);
  benchmark::RegisterBenchmark("incremental/digests_of_host_memory", digest_all)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
