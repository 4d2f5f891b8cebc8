#include "preload/service/memory/device_memory.h"

#include "preload/service/memory/captures.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "preload/service/memory/heaps.h"
#include "preload/service/memory/served_memory.h"
#include "preload/service/real_driver.h"
#include "preload/service/serve.h"
#include "preload/service/settings.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::preload {
namespace {

constinit device_memory all[device_memory::most_devices];
constinit std::atomic<bool> is_child{false};

// Who asked for it reads what the program says.
void say_not_shared(const error &e) noexcept {
  report_background_error(e);
  const status said = with_host_memory([&]() -> status {
    std::fprintf(stderr, "stillmap: %s: memory is not shared\n", e.message().c_str());
    return {};
  });
  static_cast<void>(said);
}

// Before anything is counted.
void prepare_for_forks() noexcept {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] {
    is_child.store(true, std::memory_order_relaxed);
    served_memory::leave_in_child();
    captures::leave_in_child();
  });
  static_cast<void>(registered);
}

result<device> open_device(int ordinal) {
  STILLMAP_ASSIGN_OR_RETURN(driver *const d, open_real_driver());
  return device::open(*d, ordinal);
}

}  // namespace

device_memory *device_memory::of(int ordinal) noexcept {
  const bool known = ordinal >= 0 && ordinal < most_devices;
  return known && !is_child.load(std::memory_order_relaxed) ? &all[ordinal] : nullptr;
}

int device_memory::ordinal() const noexcept {
  return static_cast<int>(this - all);
}

void device_memory::join(const device &d) noexcept {
  const lock_guard lock(joining_);
  if (joined_.load(std::memory_order_relaxed)) return;
  if (const share_settings &asked = given_settings().share; !asked.name.empty()) {
    const auto made = share_device(asked, d);
    if (made) {
      const status kept = with_host_memory([&]() -> status {
        share_.store((new std::shared_ptr<embedded_quota>(*made))->get(),
                     std::memory_order_release);
        return {};
      });
      report_if_failed(kept);
    } else {
      say_not_shared(made.error());
    }
  }
  joined_.store(true, std::memory_order_release);
}

// The allocator joins where it is made; a program may never use it.
void device_memory::join_if_first() noexcept {
  if (given_settings().share.name.empty() || joined_.load(std::memory_order_acquire)) return;
  const auto opened = with_host_memory("stillmap_preload", [&] { return open_device(ordinal()); });
  if (opened) join(*opened);
}

// What the driver enforces is said by UUID: devices have other ordinals in each program.
word device_memory::limit() noexcept {
  if (given_settings().of_devices.empty()) return given_settings().limit;
  word known = limit_.load(std::memory_order_relaxed);
  if (known != unknown) return known;
  std::array<unsigned char, 16> uuid{};
  if (pass_on<function::cuDeviceGetUuid>(reinterpret_cast<word>(uuid.data()),
                                         static_cast<number>(ordinal())) != code::success) {
    return given_settings().limit;
  }
  known = std::max<word>(limits_of(uuid).hard, unknown + 1);
  limit_.store(known, std::memory_order_relaxed);
  return known;
}

status device_memory::reserve(std::uint64_t bytes) {
  const word limit = this->limit();
  word held = held_.load(std::memory_order_relaxed);
  do {
    const word left = limit - std::min(limit, held);
    if (bytes > left) {
      return make_error(errc::out_of_memory, "the limit of the program would be exceeded", bytes,
                        left, error_unit::bytes);
    }
  } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
  embedded_quota *const q = share();
  const status shared = q != nullptr ? q->reserve(bytes) : status{};
  if (!shared) held_.fetch_sub(bytes, std::memory_order_relaxed);
  return shared;
}

status device_memory::release(std::uint64_t bytes) {
  held_.fetch_sub(bytes, std::memory_order_relaxed);
  embedded_quota *const q = share();
  return q != nullptr ? q->release(bytes) : status{};
}

// What others give is of no use beyond the program's own limit.
status device_memory::make_room(std::uint64_t bytes) {
  embedded_quota *const q = share();
  if (q == nullptr) return memory_quota::make_room(bytes);
  const word limit = this->limit(), held = held_.load(std::memory_order_relaxed);
  const word left = limit - std::min(limit, held);
  if (bytes > left) {
    return make_error(errc::out_of_memory, "the limit of the program would be exceeded", bytes,
                      left, error_unit::bytes);
  }
  return q->make_room(bytes);
}

void device_memory::end_room() noexcept {
  if (embedded_quota *const q = share()) q->end_room();
}

std::unique_ptr<reclaimer_registration> device_memory::add_reclaimer(
    reclaim_kind kind, std::function<std::uint64_t(std::uint64_t bytes)> reclaim) {
  embedded_quota *const q = share();
  return q != nullptr ? q->add_reclaimer(kind, std::move(reclaim)) : nullptr;
}

result<std::uint64_t> device_memory::retry_reclaim() {
  embedded_quota *const q = share();
  return q != nullptr ? q->retry_reclaim() : memory_quota::retry_reclaim();
}

bool device_memory::give_up_cache() noexcept {
  caching_allocator *const heap = heaps::of_device(ordinal());
  if (heap == nullptr) return false;
  const auto report = heap->empty_cache();
  return report && report->released != 0;
}

status device_memory::reserve_served(word bytes) noexcept {
  const operation_scope scope("stillmap_preload");
  prepare_for_forks();
  join_if_first();
  status reserved = reserve(bytes);
  if (!reserved && give_up_cache()) reserved = reserve(bytes);
  if (!reserved && make_room(bytes)) {
    reserved = reserve(bytes);
    end_room();
  }
  if (!reserved) {
    out_of_memory_.fetch_add(1, std::memory_order_relaxed);
    return reserved;
  }
  allocations_.fetch_add(1, std::memory_order_relaxed);
  const word now = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  word peak = live_peak_.load(std::memory_order_relaxed);
  while (now > peak && !live_peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return {};
}

void device_memory::release_served(word bytes) noexcept {
  frees_.fetch_add(1, std::memory_order_relaxed);
  live_.fetch_sub(bytes, std::memory_order_relaxed);
  report_if_failed(release(bytes));
}

device_memory::served_figures device_memory::served() const noexcept {
  return {live_.load(std::memory_order_relaxed), live_peak_.load(std::memory_order_relaxed),
          allocations_.load(std::memory_order_relaxed), frees_.load(std::memory_order_relaxed),
          out_of_memory_.load(std::memory_order_relaxed)};
}

// Before it takes part, the program is told what it will find.
std::optional<device_memory::quota_room> device_memory::room_in_quota() noexcept {
  const share_settings &asked = given_settings().share;
  if (asked.name.empty()) return std::nullopt;
  embedded_quota *const q = share();
  const auto stats = with_host_memory("stillmap_preload", [&] {
    return q != nullptr ? q->shared().stats()
                        : shared_quota::stats_of(quota_name(asked, ordinal()));
  });
  if (!stats) return std::nullopt;
  // Each participant is charged with its minimum at least. This one's own is there for it.
  word charged = 0;
  for (const quota_participant &p : stats->participants)
    charged += std::max(p.reserved, p.terms.minimum);
  if (q != nullptr) charged -= std::max(stats->own, asked.terms.minimum) - stats->own;
  return quota_room{stats->limit, stats->limit - std::min(stats->limit, charged)};
}

}  // namespace stillmap::preload
