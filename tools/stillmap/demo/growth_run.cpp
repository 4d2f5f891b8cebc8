#include "tools/stillmap/demo/growth_run.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <new>

#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/try.h"
#include "tools/stillmap/common/machine.h"
#include "tools/stillmap/common/size.h"

namespace stillmap::tool {
namespace {

using clock = std::chrono::steady_clock;

// hostcuda's device memory is host memory: stop before the machine runs out of it.
constexpr std::uint64_t host_headroom = std::uint64_t{256} << 20;
constexpr std::size_t history_limit = 4096;

// Calls a function, and adds the seconds it took.
template <class Call>
auto timed(double &seconds, const Call &call) {
  const auto begun = clock::now();
  auto result = call();
  seconds += std::chrono::duration<double>(clock::now() - begun).count();
  return result;
}

struct free_digest {
  void operator()(XXH3_state_t *s) const { XXH3_freeState(s); }
};
using digest_state = std::unique_ptr<XXH3_state_t, free_digest>;

// On the heap: it must be aligned to 64, and a stack under AddressSanitizer is not.
digest_state new_digest() {
  digest_state s(XXH3_createState());
  if (s == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(s.get());
  return s;
}

using read_function = std::function<outcome<std::size_t>(std::span<std::byte>)>;

outcome<void> with_advice(const status &s) {
  if (s) return {};
  failure f(s.error());
  if (s.error().is(errc::out_of_memory)) f.line += "; --limit SIZE stops the stream earlier";
  return tl::unexpected(std::move(f));
}

outcome<void> room_on_host(const driver &drv, std::uint64_t wanted, std::uint64_t so_far) {
  if (!drv.is_simulator()) return {};
  const std::uint64_t left = checkpoint::available_host_memory().bytes;
  if (left >= wanted + host_headroom) return {};
  return fail(exit_failed,
              fmt::format("out of host memory, which is hostcuda's device memory: {} are in the "
                          "buffer, {} more are needed, {} are free, of which {} are left to the "
                          "machine; --limit SIZE stops the stream earlier",
                          format_bytes(so_far), format_bytes(wanted), format_bytes(left),
                          format_bytes(host_headroom)));
}

void sample(const device_bytes &v, std::vector<picture_step> &history) {
  if (history.size() == history_limit) {  // keep every second one
    for (std::size_t i = 0; i < history_limit / 2; ++i) history[i] = history[i * 2];
    history.resize(history_limit / 2);
  }
  history.push_back({v.size(), v.buffer().mapped_bytes(), v.buffer().generation()});
}

outcome<growth_run> grow(const read_function &read, device_bytes &v, const growth_limits &limits,
                         progress &shown) {
  const device &d = v.buffer().device();
  const driver &drv = d.driver();
  growth_run run;
  observed &seen = run.seen;
  std::vector<std::byte> chunk(limits.chunk);
  const std::uint64_t physical_before = d.space().stats().physical.bytes();
  const driver_counts calls_before = drv.counts();
  const auto copied_before = bytes_copied_on_device(drv);

  while (seen.bytes < limits.most) {
    const auto want =
        static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), limits.most - seen.bytes));
    STILLMAP_ASSIGN_OR_RETURN(const std::size_t n, timed(run.reading, [&] {
                                return read(std::span(chunk).first(want));
                              }));
    if (n == 0) break;

    if (v.size() + n > v.capacity()) {
      const std::uint64_t more =
          v.buffer().in_place() ? n : std::max<std::uint64_t>(n, v.capacity() * 2);
      STILLMAP_RETURN_IF_ERROR(room_on_host(drv, more, v.size()));
    }
    STILLMAP_RETURN_IF_ERROR(
        with_advice(timed(run.growing, [&] { return v.reserve(v.size() + n); })));
    const bool grew = v.buffer().stats().growths != seen.growths;
    seen.growths = v.buffer().stats().growths;
    if (seen.bytes == 0) seen.first_address = v.address();
    if (seen.bytes != 0 && v.address() != seen.last_address) ++seen.moves_seen;
    seen.last_address = v.address();
    const std::span<const std::byte> bytes(chunk.data(), n);
    STILLMAP_RETURN_IF_ERROR(with_advice(timed(run.filling, [&] { return v.append(bytes); })));
    seen.bytes += n;
    if (grew) sample(v, run.history);
    shown.update(seen.bytes, fmt::format("{} mapped in {} growths at {}",
                                         format_bytes(v.buffer().mapped_bytes()), seen.growths,
                                         hexadecimal(v.address().value())));
  }
  if (seen.bytes != 0 && run.history.back().size != v.size()) sample(v, run.history);
  STILLMAP_RETURN_IF_ERROR(v.synchronize());

  run.calls = drv.counts() - calls_before;
  seen.last_address = v.address();
  if (seen.bytes == 0) seen.first_address = seen.last_address;
  seen.relocations = v.buffer().stats().relocations;
  seen.copied_by_buffer = v.buffer().stats().bytes_copied;
  seen.copied_by_calls = run.calls.bytes_on_device;
  if (copied_before) {
    seen.copied_by_driver = bytes_copied_on_device(drv).value_or(0) - *copied_before;
  }
  run.mapped = v.buffer().mapped_bytes();
  // Without the memory of other buffers of this device.
  const std::uint64_t peak = d.space().stats().physical_peak.bytes();
  run.peak_memory = peak > physical_before ? peak - physical_before : 0;
  return run;
}

}  // namespace

outcome<growth_run> grow_from(byte_source &source, device_bytes &to, const growth_limits &limits,
                              const char *what) {
  std::uint64_t expected = source.file_bytes() != 0
                               ? std::max(source.file_bytes(), source.at_least())
                               : std::uint64_t{0};
  if (limits.most != UINT64_MAX) expected = std::min(expected, limits.most);
  progress shown(what, expected, limits.silent);
  const digest_state digest = new_digest();
  auto run = grow(
      [&](std::span<std::byte> into) {
        auto n = source.read(into);
        if (n && !source.rereadable()) XXH3_64bits_update(digest.get(), into.data(), *n);
        return n;
      },
      to, limits, shown);
  if (run) {
    run->digest_used = !source.rereadable();
    run->digest = XXH3_64bits_digest(digest.get());
  }
  return run;
}

outcome<growth_run> grow_from(device_bytes &from, device_bytes &to, const growth_limits &limits,
                              const char *what) {
  progress shown(what, from.size(), limits.silent);
  std::size_t at = 0;
  return grow(
      [&](std::span<std::byte> into) -> outcome<std::size_t> {
        const std::size_t n = std::min(into.size(), from.size() - at);
        STILLMAP_RETURN_IF_ERROR(from.copy_to_host(into.first(n), at));
        at += n;
        return n;
      },
      to, limits, shown);
}

outcome<void> check_content(byte_source &source, device_bytes &of, const growth_limits &limits,
                            growth_run &run) {
  progress shown("checking", of.size(), limits.silent);
  std::vector<std::byte> device_side(limits.chunk);
  std::vector<std::byte> source_side(source.rereadable() ? limits.chunk : 0);
  const digest_state digest = new_digest();
  if (source.rereadable()) source.rewind();
  observed &seen = run.seen;
  while (seen.bytes_checked < of.size()) {
    const auto n = std::min<std::size_t>(limits.chunk, of.size() - seen.bytes_checked);
    const auto device_bytes_now = std::span(device_side).first(n);
    STILLMAP_RETURN_IF_ERROR(of.copy_to_host(device_bytes_now, seen.bytes_checked));
    if (source.rereadable()) {
      const auto source_bytes_now = std::span(source_side).first(n);
      STILLMAP_ASSIGN_OR_RETURN(const auto got, source.read(source_bytes_now));
      seen.differs =
          first_difference(source_bytes_now.first(got), device_bytes_now, seen.bytes_checked);
      if (seen.differs) return {};
      if (got < n) {
        seen.source_trouble =
            fmt::format("{} changed while it was read: it had {} bytes and now has {}",
                        source.name(), seen.bytes, seen.bytes_checked + got);
        return {};
      }
    } else {
      XXH3_64bits_update(digest.get(), device_bytes_now.data(), n);
    }
    seen.bytes_checked += n;
    shown.update(seen.bytes_checked, "read back from the device and compared");
  }
  seen.digests_differ = !source.rereadable() && XXH3_64bits_digest(digest.get()) != run.digest;
  return {};
}

std::uint64_t peak_of_copying(std::uint64_t bytes, std::uint64_t chunk) {
  std::uint64_t capacity = 0, peak = 0, size = 0;
  while (size < bytes) {
    size = std::min(bytes, size + chunk);
    if (size <= capacity) continue;
    const std::uint64_t next = capacity != 0 && size < capacity * 2 ? capacity * 2 : size;
    peak = std::max(peak, capacity + next);
    capacity = next;
  }
  return peak;
}

}  // namespace stillmap::tool
