#include "bench/costs/machine.h"

#include "bench/support/host.h"
#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

using namespace stillmap::literals;

status restart(const driver &drv, hostcuda_memory kind) {
  const std::string config =
      bench::hostcuda_settings(kind == hostcuda_memory::unbacked ? "unbacked" : "lazy");
  if (!bench::call_hostcuda<decltype(hostcuda_reset)>(drv, "hostcuda_reset", config.c_str())) {
    const operation_scope scope("hostcuda_reset");
    return make_error(errc::not_supported, "it refused to start again");
  }
  return drv.initialise();
}

std::string left_in_hostcuda(const driver &drv) {
  const hostcuda_counters now = bench::hostcuda_counters_of(drv);
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
  if (driver_->is_simulator()) STILLMAP_RETURN_IF_ERROR(restart(*driver_, kind));
  STILLMAP_ASSIGN_OR_RETURN(device_, driver_->device_handle(0));
  STILLMAP_ASSIGN_OR_RETURN(const context_handle context, driver_->retain_primary_context(device_));
  if (const status s = driver_->push_context(context); !s) {
    (void)driver_->release_primary_context(device_);
    return s;
  }
  context_ = context;
  page_ = driver_->granularity({on_device(0)}, false).value_or(2_MiB);
  vmm_ = make_piece(*this, page_).map([](const piece &) {});
  STILLMAP_ASSIGN_OR_RETURN(const auto memory, driver_->memory_info_now());
  free_before_ = memory.free.bytes();
  const std::size_t kept = memory.total.bytes() / 4;
  allowance_ = free_before_ > kept ? free_before_ - kept : 0;
  return {};
}

std::string machine::leave() {
  if (context_ == nullptr) return "";
  std::string left;
  (void)driver_->synchronize_context();  // what was freed in stream order is free now
  if (driver_->is_simulator()) {
    left = left_in_hostcuda(*driver_);
  } else if (const auto now = driver_->memory_info_now();
             now && now->free.bytes() + page_ <= free_before_) {
    // Other programs or the driver may have taken it, so this is reported, not an error.
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
  if (!driver_->is_simulator()) return "";
  const std::string given = bench::environment("HOSTCUDA");
  return given.empty() ? "profile=h200" : given;
}

std::size_t machine::pinned_allowance() {
  return checkpoint::available_host_memory().bytes / 8;
}

result<own_stream> machine::create_stream(bool non_blocking) const {
  STILLMAP_ASSIGN_OR_RETURN(const stream_handle made, driver_->create_stream(non_blocking));
  return own_stream(*driver_, made);
}

result<addresses> machine::reserve(std::size_t bytes) const {
  STILLMAP_ASSIGN_OR_RETURN(const device_address at, driver_->reserve_addresses(bytes, 0, {}));
  return addresses(*driver_, {at, bytes});
}

result<physical> machine::create(std::size_t bytes, handle_type exportable) const {
  STILLMAP_ASSIGN_OR_RETURN(const physical_handle made,
                            driver_->create_physical(bytes, {on_device(0), exportable}));
  return physical(*driver_, made);
}

result<mapping> machine::map(device_address at, std::size_t bytes, physical_handle pages) const {
  STILLMAP_RETURN_IF_ERROR(driver_->map(at, bytes, pages));
  return mapping(*driver_, {at, bytes});
}

status machine::allow(virtual_range range) const {
  const access_grant grant{on_device(0), access_mode::read_write};
  return driver_->set_access(range, &grant, 1);
}

result<piece> make_piece(const machine &m, std::size_t bytes) {
  piece p;
  STILLMAP_ASSIGN_OR_RETURN(p.at, m.reserve(bytes));
  STILLMAP_ASSIGN_OR_RETURN(p.pages, m.create(bytes));
  STILLMAP_ASSIGN_OR_RETURN(p.there, m.map(p.begin(), bytes, p.pages.get()));
  STILLMAP_RETURN_IF_ERROR(m.allow(p.at.get()));
  return p;
}

}  // namespace stillmap::costs
