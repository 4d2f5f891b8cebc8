#include "stillmap/vmm/internal/device_probe.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/driver.h"

namespace stillmap {
namespace {

using namespace literals;

// CUdevice_attribute, by value.
enum attribute : int {
  integrated = 18,
  virtual_memory_management = 102,
  posix_fd_handles = 103,
  rdma_pages = 110,
  stream_ordered_pools = 115,
  fabric_handles = 128,
  host_numa_node = 134,
  host_numa_pages = 141,
};

constexpr std::size_t fallback_page = 2_MiB;
constexpr std::size_t smallest_trial = 1_GiB;
// The number of mappings at which cuMemSetAccess of an H100 driver was reported to fail with out of
// memory. Drivers do not report their limit.
constexpr std::size_t reported_mapping_ceiling = 520000;

// The resources of a trial, released by their destructors.
class trial_page {
 public:
  trial_page(const driver &drv, physical_handle h) : drv_(drv), handle_(h) {}
  trial_page(const trial_page &) = delete;
  ~trial_page() { report_if_failed(drv_.release_physical(handle_)); }

 private:
  const driver &drv_;
  physical_handle handle_;
};

class trial_range {
 public:
  trial_range(const driver &drv, virtual_range r) : drv_(drv), range_(r) {}
  trial_range(const trial_range &) = delete;
  ~trial_range() {
    if (mapped_) report_if_failed(drv_.unmap(range_));
    report_if_failed(drv_.free_addresses(range_));
  }
  status map(physical_handle h) {
    status s = drv_.map(range_.begin, range_.bytes, h);
    mapped_ = s.has_value();
    return s;
  }

 private:
  const driver &drv_;
  virtual_range range_;
  bool mapped_ = false;
};

class prober {
 public:
  prober(const driver &drv, int ordinal) : drv_(drv), ordinal_(ordinal) {}
  result<capabilities> run();

 private:
  using trial = status (prober::*)();

  bool advertised(int attribute) {
    const auto value = drv_.device_attribute(attribute, ordinal_);
    if (!value) note_if_lost(value.error());
    return value && *value >= 1;
  }
  // A failure means that the capability is absent, unless the device is lost.
  bool works(const status &s) {
    if (!s) note_if_lost(s.error());
    return s.has_value();
  }
  void note_if_lost(const error &e) {
    if (!fatal_ && e.is(errc::device_lost)) fatal_.emplace(e);
  }

  physical_properties page_here() const { return {on_device(ordinal_), handle_type::none, false}; }
  status access_page(const physical_properties &p, std::size_t bytes);
  status export_page(handle_type type);
  status map_host_page();
  status use_pool();
  void granularities();
  std::size_t largest_reservation();
  std::vector<int> peers();
  std::string_view simulated() const;
  bool on_wsl() const;
  std::size_t mapping_ceiling() const;

  const driver &drv_;
  int ordinal_;
  capabilities found_;
  std::optional<error> fatal_;
};

// Creates a page, maps it and makes it accessible.
status prober::access_page(const physical_properties &p, std::size_t bytes) {
  STILLMAP_ASSIGN_OR_RETURN(const auto page, drv_.create_physical(bytes, p));
  const trial_page held(drv_, page);
  STILLMAP_ASSIGN_OR_RETURN(const auto at, drv_.reserve_addresses(bytes, 0, device_address()));
  trial_range range(drv_, {at, bytes});
  STILLMAP_RETURN_IF_ERROR(range.map(page));
  const access_grant grant{on_device(ordinal_), access_mode::read_write};
  return drv_.set_access({at, bytes}, &grant, 1);
}

status prober::export_page(handle_type type) {
  physical_properties p = page_here();
  p.exportable = type;
  STILLMAP_ASSIGN_OR_RETURN(const auto page, drv_.create_physical(found_.page_bytes, p));
  const trial_page held(drv_, page);
  if (type == handle_type::fabric) return drv_.export_fabric(page).map([](const auto &) {});
  return drv_.export_fd(page).map([](int fd) { ::close(fd); });
}

status prober::map_host_page() {
  STILLMAP_ASSIGN_OR_RETURN(const auto node, drv_.device_attribute(host_numa_node, ordinal_));
  physical_properties p;
  p.location = on_host_numa(std::max(node, 0));  // -1: no NUMA, so one node
  STILLMAP_ASSIGN_OR_RETURN(const auto bytes, drv_.granularity(p, false));
  return access_page(p, bytes);
}

// Uses its own stream: the legacy default stream may have queued work, or be part of a capture of
// another thread.
status prober::use_pool() {
  STILLMAP_ASSIGN_OR_RETURN(const auto stream, drv_.create_stream(true));
  status outcome;
  if (const auto at = drv_.allocate_async(1, stream); !at) {
    outcome = tl::unexpected<error>(at.error());
  } else {
    outcome = drv_.free_async(*at, stream);
    if (!outcome) report_if_failed(drv_.free(*at));
    // The pool keeps its page until a host wait, so a failed wait is tried once more.
    status waited = drv_.synchronize_stream(stream);
    if (outcome) outcome = waited;
    if (!waited) waited = drv_.synchronize_stream(stream);
  }
  report_if_failed(drv_.destroy_stream(stream));
  return outcome;
}

void prober::granularities() {
  const auto minimum = drv_.granularity(page_here(), false);
  const auto recommended = drv_.granularity(page_here(), true);
  if (!minimum) note_if_lost(minimum.error());
  if (!recommended) note_if_lost(recommended.error());
  found_.page_bytes = minimum && *minimum != 0 ? *minimum : fallback_page;
  found_.recommended_page_bytes = std::max(found_.page_bytes, recommended.value_or(0));
}

// A buffer grows in place while its reservation is large enough, so a reservation should exceed the
// memory many times. The limit depends on the machine (32 GiB fail on WSL).
std::size_t prober::largest_reservation() {
  const auto total = drv_.device_total_memory(ordinal_);
  if (!total) note_if_lost(total.error());
  const std::size_t memory = total ? static_cast<std::size_t>(total->bytes()) : 0;
  const std::size_t wanted =
      std::max(memory > SIZE_MAX / 16 ? memory : memory * 16, smallest_trial);
  for (std::size_t bytes = round_up(wanted, found_.page_bytes); bytes >= smallest_trial && !fatal_;
       bytes = round_up(bytes / 2, found_.page_bytes)) {
    const auto at = drv_.reserve_addresses(bytes, 0, device_address());
    if (at) {
      const trial_range held(drv_, {*at, bytes});
      return bytes;
    }
    note_if_lost(at.error());
  }
  return found_.page_bytes;  // access_page() has reserved that much
}

std::vector<int> prober::peers() {
  std::vector<int> out;
  const auto count = drv_.device_count();
  if (!count) {
    note_if_lost(count.error());
    return out;
  }
  for (int other = 0; other < *count; ++other) {
    if (other == ordinal_) continue;
    const auto can = drv_.can_access_peer(other, ordinal_);
    if (!can) {
      note_if_lost(can.error());
    } else if (*can) {
      out.push_back(other);
    }
  }
  return out;
}

// The configuration of a simulated machine, "profile=wsl2,memory=..."; empty on a real driver.
std::string_view prober::simulated() const {
  const auto configuration =
      reinterpret_cast<int (*)(const char **)>(drv_.simulator_function("config"));
  const char *text = nullptr;
  if (configuration == nullptr || configuration(&text) != 0 || text == nullptr) return {};
  return text;
}

// A simulated machine has no device files.
bool prober::on_wsl() const {
  if (!drv_.is_simulator()) return ::access("/dev/dxg", F_OK) == 0;
  return simulated().find("profile=wsl2") != std::string_view::npos;
}

// The simulator reports its limit: with real bytes it is that of the process, far below a driver's.
std::size_t prober::mapping_ceiling() const {
  constexpr std::string_view key = ",mappings=";
  const std::string_view text = simulated();
  const std::size_t at = text.find(key);
  std::size_t reported = 0;
  if (at != std::string_view::npos) {
    std::from_chars(text.data() + at + key.size(), text.data() + text.size(), reported);
  }
  return reported != 0 ? reported : reported_mapping_ceiling;
}

result<capabilities> prober::run() {
  found_.page_bytes = found_.recommended_page_bytes = fallback_page;
  found_.integrated = advertised(integrated);
  found_.wsl = on_wsl();
  found_.peers = peers();
  found_.memory_pools = advertised(stream_ordered_pools) && works(use_pool());
  if (advertised(virtual_memory_management)) {
    granularities();
    const status one_page = access_page(page_here(), found_.page_bytes);
    if (!one_page && one_page.error().is(errc::out_of_memory)) {
      return tl::unexpected<error>(one_page.error());
    }
    found_.vmm = works(one_page);
  }
  if (found_.vmm) {
    physical_properties rdma = page_here();
    rdma.rdma = true;
    found_.posix_fd_export =
        advertised(posix_fd_handles) && works(export_page(handle_type::posix_fd));
    found_.fabric_export = advertised(fabric_handles) && works(export_page(handle_type::fabric));
    found_.rdma = advertised(rdma_pages) && works(access_page(rdma, found_.page_bytes));
    found_.host_numa = advertised(host_numa_pages) && works(map_host_page());
    found_.largest_reservation = largest_reservation();
    found_.mapping_ceiling = mapping_ceiling();
  } else {
    found_.page_bytes = found_.recommended_page_bytes = fallback_page;
  }
  if (fatal_) return tl::unexpected<error>(*fatal_);
  return std::move(found_);
}

}  // namespace

result<capabilities> probe(const driver &drv, int ordinal) {
  return prober(drv, ordinal).run();
}

}  // namespace stillmap
