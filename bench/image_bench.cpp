// Writing an image, compared with copying as many bytes by hand: in memory with `cp`, on disk with
// direct writes. Also the speed of digests.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "bench/support/session.h"
#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::bench {
namespace {

using image::block_bytes;

std::size_t total_bytes() {
  return smoke() ? 16_MiB : 1_GiB;
}

// Contents that neither compress nor repeat; the same for all.
image::bytes_view contents() {
  static std::byte *const memory = [] {
    auto *const m = static_cast<std::byte *>(std::aligned_alloc(block_bytes, total_bytes()));
    std::mt19937_64 random(1);
    for (std::size_t i = 0; i < total_bytes(); i += 8) {
      const std::uint64_t r = random();
      std::memcpy(m + i, &r, 8);
    }
    return m;
  }();
  return {memory, total_bytes()};
}

image::manifest whole_pages() {
  constexpr std::uint64_t at = 0x7f00'0000'0000, page = 2_MiB;
  image::manifest m;
  m.tags = {"benchmark"};
  m.access_lists = {{}};
  m.blocks = {{at, total_bytes(), 0, 0}};
  for (std::uint64_t p = 0; p < total_bytes() / page; ++p) {
    m.pages.push_back({page, {}, handle_type::none, false});
    m.places.push_back({at + p * page, static_cast<std::uint32_t>(p), 0});
  }
  return m;
}

void count(benchmark::State &state) {
  state.SetBytesProcessed(static_cast<std::int64_t>(total_bytes()) * state.iterations());
}

void write_image(benchmark::State &state, const std::string &folder, image::codec codec,
                 bool verify) {
  const std::string path = file_for_bench(folder, ".smi");
  const image::manifest what = whole_pages();
  image::write_options how;
  how.compress = codec;
  how.verify = verify;
  contents();
  for (auto _ : state) {
    image::contents_in_memory from(contents());
    stopwatch watch;
    const auto w = watch.time([&] { return image::write(path, what, from, how); });
    if (!w) return state.SkipWithError(w.error().message().c_str());
    state.counters["direct_io"] = w->direct_io;
    state.SetIterationTime(watch.seconds());
    ::unlink(path.c_str());
  }
  count(state);
}

void read_image(benchmark::State &state, const std::string &folder) {
  const std::string path = file_for_bench(folder, ".smi");
  image::contents_in_memory from(contents());
  if (const auto w = image::write(path, whole_pages(), from); !w) {
    return state.SkipWithError(w.error().message().c_str());
  }
  for (auto _ : state) {
    const auto r = image::reader::open(path);
    const auto ok = r ? r->verify() : status();
    if (!r || !ok) return state.SkipWithError("the image is not sound");
  }
  ::unlink(path.c_str());
  count(state);
}

// All of it, from memory.
bool write_all(int fd, std::size_t piece) {
  const image::bytes_view from = contents();
  for (std::size_t at = 0; at < from.size(); at += piece) {
    if (::pwrite(fd, from.data() + at, piece, static_cast<off_t>(at)) !=
        static_cast<ssize_t>(piece)) {
      return false;
    }
  }
  return true;
}

enum class by_hand { read_and_write, copy_file_range, direct };

void copy(benchmark::State &state, const std::string &folder, by_hand how) {
  const std::string from = file_for_bench(folder, ".from"), to = file_for_bench(folder, ".to");
  const int in = ::open(from.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (in < 0 || (how != by_hand::direct && !write_all(in, 2_MiB))) {
    return state.SkipWithError("no room");
  }
  const std::unique_ptr<char[]> room(new char[2_MiB]);
  for (auto _ : state) {
    stopwatch watch;
    watch.start();
    const int out = ::open(
        to.c_str(),
        O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | (how == by_hand::direct ? O_DIRECT : 0), 0600);
    bool ok = out >= 0;
    if (how == by_hand::direct) {
      ok = ok && ::fallocate(out, 0, 0, static_cast<off_t>(total_bytes())) == 0 &&
           write_all(out, 2_MiB) && ::fdatasync(out) == 0;
    } else {
      for (std::size_t done = 0; ok && done < total_bytes();) {
        auto at = static_cast<off_t>(done);
        auto to_at = at;
        ssize_t n = 0;
        if (how == by_hand::copy_file_range) {
          n = ::copy_file_range(in, &at, out, &to_at, total_bytes() - done, 0);
        } else {
          n = ::pread(in, room.get(), 2_MiB, at);
          if (n > 0) n = ::pwrite(out, room.get(), static_cast<std::size_t>(n), to_at);
        }
        ok = n > 0;
        done += ok ? static_cast<std::size_t>(n) : 0;
      }
    }
    watch.stop();
    state.SetIterationTime(watch.seconds());
    ::close(out);
    ::unlink(to.c_str());
    if (!ok) {
      state.SkipWithError("this file system does not do that");
      break;
    }
  }
  ::close(in);
  ::unlink(from.c_str());
  count(state);
}

void digesting(benchmark::State &state, bool both) {
  const image::bytes_view all = contents();
  for (auto _ : state) {
    for (std::size_t at = 0; at < all.size(); at += 2_MiB) {
      const auto chunk = all.subspan(at, 2_MiB);
      if (both) {
        benchmark::DoNotOptimize(image::digests_of({}, chunk));
      } else {
        benchmark::DoNotOptimize(image::digest_of_contents({}, chunk));
      }
    }
  }
  count(state);
}

[[maybe_unused]] const bool registered = [] {
  for (const auto &[folder, where] : {std::pair{std::string("/dev/shm"), std::string("to tmpfs|")},
                                      std::pair{temporary_folder(), std::string("to disk|")}}) {
    add_case(where + "image", 0,
             [f = folder](auto &s) { write_image(s, f, image::codec::none, true); });
    add_case(where + "image, not read again", 0,
             [f = folder](auto &s) { write_image(s, f, image::codec::none, false); });
    add_case(where + "read and write", 0,
             [f = folder](auto &s) { copy(s, f, by_hand::read_and_write); });
    add_case(where + "copy_file_range", 0,
             [f = folder](auto &s) { copy(s, f, by_hand::copy_file_range); });
    add_case(where + "O_DIRECT", 0, [f = folder](auto &s) { copy(s, f, by_hand::direct); });
    benchmark::RegisterBenchmark((where + "verify").c_str(),
                                 [f = folder](auto &s) { read_image(s, f); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  for (const bool both : {false, true}) {
    benchmark::RegisterBenchmark(both ? "digest|contents and stored" : "digest|contents",
                                 [both](auto &s) { digesting(s, both); })
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();

}  // namespace
}  // namespace stillmap::bench
