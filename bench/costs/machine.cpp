#include "bench/costs/machine.h"

#include <hostcuda/hostcuda.h>

#include <cstdlib>
#include <fstream>

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;

// hostcuda's switches are found at run time: a GPU's driver has none.
template <class Function>
Function *control(const driver &drv, const char *name) {
  return reinterpret_cast<Function *>(drv.symbol(name));
}

status restart(const driver &drv, hostcuda_memory kind) {
  const char *const given = std::getenv("HOSTCUDA");
  std::string config = given != nullptr ? given : "";
  if (!config.empty()) config += ',';
  config += kind == hostcuda_memory::unbacked ? "unbacked" : "lazy";
  auto *const reset = control<decltype(hostcuda_reset)>(drv, "hostcuda_reset");
  if (reset == nullptr || reset(config.c_str()) != CUDA_SUCCESS) {
    return make_error(errc::not_supported, "hostcuda_reset", "it refused to start again");
  }
  return drv.initialise();
}

std::string left_in_hostcuda(const driver &drv) {
  auto *const get = control<decltype(hostcuda_get_counters)>(drv, "hostcuda_get_counters");
  hostcuda_counters now = {};
  if (get == nullptr || get(&now) != CUDA_SUCCESS) return "";
  std::string out;
  const auto look = [&out](std::uint64_t n, const char *what) {
    if (n != 0) out += (out.empty() ? "" : ", ") + std::to_string(n) + " " + what;
  };
  look(now.live_handles, "physical allocations");
  look(now.live_mappings, "mappings");
  look(now.live_reservations, "reservations");
  look(now.live_streams, "streams");
  look(now.live_events, "events");
  look(now.live_host_ranges, "pinned ranges");
  look(now.physical_bytes, "bytes of device memory");
  look(now.violations, "violations of the order of work");
  return out;
}

}  // namespace

status machine::enter(hostcuda_memory kind) {
  leave();
  if (driver_->is_hostcuda()) {
    if (const status s = restart(*driver_, kind); !s) return s;
  }
  const auto handle = driver_->device_handle(0);
  if (!handle) return tl::unexpected(handle.error());
  device_ = *handle;
  const auto context = driver_->retain_primary_context(device_);
  if (!context) return tl::unexpected(context.error());
  if (const status s = driver_->push_context(*context); !s) {
    (void)driver_->release_primary_context(device_);
    return s;
  }
  context_ = *context;
  page_ = driver_->granularity({on_device(0)}, false).value_or(2_MiB);
  vmm_ = make_piece(*this, page_).map([](const piece &) {});
  const auto memory = driver_->memory_info_now();
  if (!memory) return tl::unexpected(memory.error());
  free_before_ = memory->free.bytes();
  const std::size_t kept = memory->total.bytes() / 4;
  allowance_ = free_before_ > kept ? free_before_ - kept : 0;
  return {};
}

std::string machine::leave() {
  if (context_ == nullptr) return "";
  std::string left;
  (void)driver_->synchronize_context();  // what was freed in stream order is free now
  if (driver_->is_hostcuda()) {
    left = left_in_hostcuda(*driver_);
  } else if (const auto now = driver_->memory_info_now();
             now && now->free.bytes() + page_ <= free_before_) {
    // Others may have taken it, or the driver for itself: it is said, and no more.
    left = std::to_string((free_before_ - now->free.bytes()) >> 10) + " KiB less are free";
  }
  (void)driver_->pop_context();
  (void)driver_->release_primary_context(device_);
  context_ = nullptr;
  return left;
}

std::string machine::device_name() const {
  return driver_->device_name(device_).value_or("unknown");
}

std::string machine::hostcuda_config() const {
  if (!driver_->is_hostcuda()) return "";
  const char *const given = std::getenv("HOSTCUDA");
  return given != nullptr && *given != '\0' ? given : "profile=h200";
}

std::size_t machine::pinned_allowance() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    std::size_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return (kib << 10) / 8;
  }
  return 64_MiB;
}

result<addresses> machine::reserve(std::size_t bytes) const {
  const auto at = driver_->reserve_addresses(bytes, 0, {});
  if (!at) return tl::unexpected(at.error());
  return addresses(*driver_, {*at, bytes});
}

result<physical> machine::create(std::size_t bytes, handle_type exportable) const {
  const auto made = driver_->create_physical(bytes, {on_device(0), exportable});
  if (!made) return tl::unexpected(made.error());
  return physical(*driver_, *made);
}

result<mapping> machine::map(device_address at, std::size_t bytes, physical_handle pages) const {
  if (const status s = driver_->map(at, bytes, pages); !s) return tl::unexpected(s.error());
  return mapping(*driver_, {at, bytes});
}

status machine::allow(virtual_range range) const {
  const access_grant grant{on_device(0), access_mode::read_write};
  return driver_->set_access(range, &grant, 1);
}

result<piece> make_piece(const machine &m, std::size_t bytes) {
  piece p;
  auto at = m.reserve(bytes);
  if (!at) return tl::unexpected(at.error());
  p.at = std::move(*at);
  auto pages = m.create(bytes);
  if (!pages) return tl::unexpected(pages.error());
  p.pages = std::move(*pages);
  auto there = m.map(p.begin(), bytes, p.pages.get());
  if (!there) return tl::unexpected(there.error());
  p.there = std::move(*there);
  if (const status s = m.allow(p.at.get()); !s) return tl::unexpected(s.error());
  return p;
}

}  // namespace stillmap::costs
