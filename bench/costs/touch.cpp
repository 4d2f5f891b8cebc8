// Whether the first touch of new memory costs more than the next, and which call zeroes it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "bench/costs/parts.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;

constexpr const char *untouched = "cuMemRelease (never written)",
                     *written = "cuMemRelease (written)",
                     *after_release = "cuMemCreate (after a release)",
                     *after_pause = "cuMemCreate (after a pause)";

struct found {
  bool new_is_zero = true, reused_is_zero = true;
  std::size_t looked_at = 0;
};

// Reads all of small memory, and 64 places of large memory.
result<bool> is_zero(const driver &drv, device_address at, std::size_t bytes, found &f) {
  std::vector<unsigned char> seen(1_MiB);
  const std::size_t step = std::max(seen.size(), round_down(bytes / 64, seen.size()));
  for (std::size_t from = 0; from + seen.size() <= bytes; from += step) {
    STILLMAP_RETURN_IF_ERROR(drv.copy_to_host(seen.data(), at + from, seen.size()));
    f.looked_at += seen.size();
    if (seen[0] != 0 || std::memcmp(seen.data(), seen.data() + 1, seen.size() - 1) != 0) {
      return false;
    }
  }
  return true;
}

class toucher {
 public:
  toucher(const machine &m, const own_stream &stream, std::size_t bytes)
      : m_(m), drv_(m.driver()), stream_(stream.get()), bytes_(bytes) {}

  status once(std::chrono::milliseconds pause, call_times &into, found &f) const {
    std::this_thread::sleep_for(pause);
    piece a, b, c, d;
    STILLMAP_RETURN_IF_ERROR(make(after_pause, a, into));
    STILLMAP_ASSIGN_OR_RETURN(const bool new_zero, is_zero(drv_, a.begin(), bytes_, f));
    f.new_is_zero = f.new_is_zero && new_zero;
    STILLMAP_RETURN_IF_ERROR(give_back(untouched, a, into));
    call_times untimed;
    STILLMAP_RETURN_IF_ERROR(make("", b, untimed));
    STILLMAP_RETURN_IF_ERROR(fill("memset, first", b, into));
    STILLMAP_RETURN_IF_ERROR(fill("memset, again", b, into));
    STILLMAP_RETURN_IF_ERROR(make("", c, untimed));
    STILLMAP_RETURN_IF_ERROR(copy("copy, first", c, b, into));
    STILLMAP_RETURN_IF_ERROR(copy("copy, again", c, b, into));
    STILLMAP_RETURN_IF_ERROR(give_back(written, c, into));
    STILLMAP_RETURN_IF_ERROR(give_back(written, b, into));
    STILLMAP_RETURN_IF_ERROR(make(after_release, d, into));
    STILLMAP_ASSIGN_OR_RETURN(const bool reused_zero, is_zero(drv_, d.begin(), bytes_, f));
    f.reused_is_zero = f.reused_is_zero && reused_zero;
    return {};
  }

 private:
  // make_piece() with the creation timed under `name`.
  status make(const char *name, piece &p, call_times &into) const {
    STILLMAP_ASSIGN_OR_RETURN(p.at, m_.reserve(bytes_));
    STILLMAP_ASSIGN_OR_RETURN(p.pages, into.time(name, [&] { return m_.create(bytes_); }));
    STILLMAP_ASSIGN_OR_RETURN(p.there, m_.map(p.begin(), bytes_, p.pages.get()));
    return m_.allow(p.at.get());
  }
  status give_back(const char *name, piece &p, call_times &into) const {
    STILLMAP_RETURN_IF_ERROR(p.there.give_back());
    return into.time(name, [&] { return p.pages.give_back(); });
  }
  status fill(const char *name, const piece &p, call_times &into) const {
    return into.time(name, [&] {
      const status s = drv_.set_bytes_async(p.begin(), 0xA5, bytes_, stream_);
      return s ? drv_.synchronize_stream(stream_) : s;
    });
  }
  status copy(const char *name, const piece &to, const piece &from, call_times &into) const {
    return into.time(name, [&] {
      const status s = drv_.copy_on_device_async(to.begin(), from.begin(), bytes_, stream_);
      return s ? drv_.synchronize_stream(stream_) : s;
    });
  }

  const machine &m_;
  const driver &drv_;
  stream_handle stream_;
  std::size_t bytes_;
};

void say_who_pays(call_times &times, std::size_t bytes, table &out) {
  const auto at = [&](const char *name) { return times.of(name).summary().median_ns; };
  const double again = at("memset, again");
  if (again <= 0) return;
  const struct {
    const char *who;
    const char *takes;
    double ns;
  } payers[] = {
      {"cuMemCreate", "cuMemCreate after a pause ", at(after_pause)},
      {"cuMemCreate", "cuMemCreate right after a release ", at(after_release)},
      {"cuMemRelease", "cuMemRelease of what was written ", at(written)},
      {"the first touch", "what the first memset takes more ", at("memset, first") - again},
  };
  const auto *const most = std::max_element(std::begin(payers), std::end(payers),
                                            [](auto &a, auto &b) { return a.ns < b.ns; });
  // Zeroing does not take much less than a memset.
  const std::string who = most->ns >= again / 2 ? most->who : "nothing that was looked at";
  std::string text = "the zeros of new memory are paid for by " + who + ": of " +
                     std::to_string(bytes >> 20) + " MiB a memset takes " + microseconds(again) +
                     " µs";
  for (const auto &p : payers) text += ", " + (p.takes + microseconds(p.ns)) + " µs";
  out.add_fact("zero.paid_by", who, text);
}

}  // namespace

void measure_touch(const machine &m, time_left left, bool quick, table &out) {
  const auto stream = m.create_stream();
  if (!stream) return out.refused(stream.error(), against::touched, 0);
  // hostcuda uses host memory: large sizes prove nothing there.
  const std::size_t largest = quick ? 8_MiB : m.driver().is_simulator() ? 128_MiB : 1_GiB;
  const std::chrono::milliseconds pause(quick ? 5 : 100);
  std::vector<std::size_t> sizes{2_MiB, 8_MiB, 32_MiB, 128_MiB, 512_MiB, 1_GiB};
  std::erase_if(sizes, [&](std::size_t n) { return n > largest || n > m.allowance() / 3; });
  found f;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t bytes = round_up(sizes[i], m.page());
    const time_left now = left.share(1.0 / static_cast<double>(sizes.size() - i)).at_most(100);
    const toucher t(m, *stream, bytes);
    call_times times;
    const auto once = [&](call_times &into) { return t.once(pause, into, f); };
    if (!sample(now, times, against::touched, static_cast<double>(bytes), out, once)) return;
    if (i + 1 == sizes.size()) say_who_pays(times, bytes, out);
  }
  if (f.looked_at == 0) return;
  const std::string looked = " (" + std::to_string(f.looked_at >> 20) + " MiB were read)";
  out.add_fact("zero.new", f.new_is_zero ? "yes" : "no",
               (f.new_is_zero ? "new memory is zero" : "new memory is NOT zero") + looked);
  out.add_fact("zero.reused", f.reused_is_zero ? "yes" : "no",
               std::string("memory created after as much was written and released is ") +
                   (f.reused_is_zero ? "zero" : "NOT zero") + looked);
}

}  // namespace stillmap::costs
