#include "python/src/devices.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <mutex>
#include <vector>

#include "python/src/errors.h"
#include "python/src/fork_guard.h"
#include "python/src/gil.h"
#include "python/src/text.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/base/version.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::python {
namespace {

struct open_devices {
  std::mutex mutex;
  std::map<int, device> all;
};

// Never destroyed: Python's objects use it until the process ends.
open_devices &devices() {
  static open_devices *const made = new open_devices;
  return *made;
}

nb::dict info_of(const device &d, const memory_info &memory) {
  const capabilities &can = d.capabilities();
  nb::dict info;
  info["ordinal"] = d.ordinal();
  info["name"] = d.name();
  info["uuid"] = text_of_uuid(d.uuid());
  info["total_bytes"] = d.total_memory().bytes();
  info["free_bytes"] = memory.free.bytes();
  info["vmm"] = can.vmm;
  info["page_bytes"] = can.page_bytes;
  info["recommended_page_bytes"] = can.recommended_page_bytes;
  info["posix_fd_export"] = can.posix_fd_export;
  info["fabric_export"] = can.fabric_export;
  info["rdma"] = can.rdma;
  info["host_numa"] = can.host_numa;
  info["memory_pools"] = can.memory_pools;
  info["integrated"] = can.integrated;
  info["wsl"] = can.wsl;
  info["largest_reservation"] = can.largest_reservation;
  info["mapping_ceiling"] = can.mapping_ceiling;
  info["peers"] = can.peers;
  info["driver_version"] = d.driver().version();
  info["driver_path"] = d.driver().path();
  info["hostcuda"] = d.driver().is_simulator();
  return info;
}

struct tag_figures {
  std::size_t reserved = 0, mapped = 0, suspended = 0, blocks = 0, mappings = 0;
  std::vector<virtual_range> places;
};

struct device_figures {
  memory_info memory;
  address_space_stats space;
  page_pool_stats pool;
  bool has_pool = false;
  std::map<std::string, tag_figures> tags;
};

result<device_figures> figures_of(int ordinal) {
  STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
  device_figures f;
  STILLMAP_ASSIGN_OR_RETURN(f.memory, d.memory());
  f.space = d.space().stats();
  if (const auto pool = d.pool(); pool && d.capabilities().vmm) {
    f.pool = pool->stats();
    f.has_pool = true;
  }
  for (const block_record &block : d.space().blocks()) {
    tag_figures &tag = f.tags[block.tag];
    tag.reserved += block.range.bytes;
    tag.mapped += block.mapped_bytes;
    tag.suspended += block.suspended_bytes;
    tag.mappings += block.mappings;
    ++tag.blocks;
    tag.places.push_back(block.range);
  }
  return f;
}

nb::dict dict_of(const device_figures &f) {
  nb::dict tags;
  for (const auto &[name, tag] : f.tags) {
    nb::list places;
    for (const virtual_range &range : tag.places) {
      nb::dict place;
      place["address"] = range.begin.value();
      place["nbytes"] = range.bytes;
      places.append(place);
    }
    nb::dict entry;
    entry["reserved_bytes"] = tag.reserved;
    entry["mapped_bytes"] = tag.mapped;
    entry["suspended_bytes"] = tag.suspended;
    entry["blocks"] = tag.blocks;
    entry["mappings"] = tag.mappings;
    entry["places"] = places;
    tags[str_of(name)] = entry;
  }
  nb::dict stats;
  stats["total_bytes"] = f.memory.total.bytes();
  stats["free_bytes"] = f.memory.free.bytes();
  stats["reserved_bytes"] = f.space.reserved_bytes;
  stats["mapped_bytes"] = f.space.mapped_bytes;
  stats["suspended_bytes"] = f.space.suspended_bytes;
  stats["physical_bytes"] = f.space.physical.bytes();
  stats["physical_peak_bytes"] = f.space.physical_peak.bytes();
  stats["blocks"] = f.space.live_blocks;
  stats["mappings"] = f.space.live_mappings;
  stats["retiring_mappings"] = f.space.retiring_mappings;
  stats["mapping_ceiling"] = f.space.mapping_ceiling;
  stats["background_errors"] = background_error_count();
  stats["tags"] = tags;
  nb::dict pool;
  if (f.has_pool) {
    pool["created_bytes"] = f.pool.created.bytes();
    pool["peak_bytes"] = f.pool.peak.bytes();
    pool["free_bytes"] = f.pool.free.bytes();
    pool["waiting_bytes"] = f.pool.waiting.bytes();
    pool["pages_created"] = f.pool.pages_created;
    pool["pages_released"] = f.pool.pages_released;
    pool["pages_reused"] = f.pool.pages_reused;
    pool["host_waits"] = f.pool.host_waits;
  }
  stats["pool"] = pool;
  return stats;
}

}  // namespace

std::string text_of_uuid(const std::array<unsigned char, 16> &uuid) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    constexpr const char *digits = "0123456789abcdef";
    text += {digits[uuid[i] / 16], digits[uuid[i] % 16]};
  }
  return text;
}

result<device> open_device(int ordinal) {
  open_devices &known = devices();
  const std::lock_guard lock(known.mutex);
  if (const auto found = known.all.find(ordinal); found != known.all.end()) return found->second;
  auto opened = device::open(ordinal);
  if (!opened) return opened;
  note_driver_use();
  known.all.emplace(ordinal, *opened);
  return opened;
}

void bind_devices(nb::module_ &m) {
  m.def(
      "version", [] { return STILLMAP_VERSION_STRING; }, "Stillmap's version: \"0.1.0\".");
  m.def(
      "device_count",
      [] {
        const auto count = without_gil([] {
          auto n = device::count();
          if (n) note_driver_use();
          return n;
        });
        if (!count && count.error().is(errc::not_supported)) return 0;
        return value_of(count);
      },
      "The number of devices; 0 where there is no driver (device_info() says why).");
  m.def(
      "device_info",
      [](int ordinal) {
        struct answer {
          device d;
          memory_info memory;
        };
        const answer a = value_of(without_gil([&]() -> result<answer> {
          STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
          STILLMAP_ASSIGN_OR_RETURN(const memory_info memory, d.memory());
          return answer{d, memory};
        }));
        return info_of(a.d, a.memory);
      },
      nb::arg("device") = 0,
      "Name, memory and capabilities of a device. The first call for a device opens and probes "
      "it.");
  m.def(
      "trim",
      [](std::size_t keep, int ordinal) {
        return value_of(without_gil([&]() -> result<std::size_t> {
          STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
          const auto pool = d.pool();
          if (!pool) return std::size_t{0};
          STILLMAP_ASSIGN_OR_RETURN(const physical_size released, pool->trim(keep));
          return released.bytes();
        }));
      },
      nb::arg("keep") = 0, nb::kw_only(), nb::arg("device") = 0,
      "Gives free pages of the device's page pool back to the device, until at most `keep` bytes "
      "are\n"
      "left: buffers keep the pages of closed ones for the next. Pages that queued work used are "
      "free\n"
      "once that work is over. Returns the bytes released.");
  m.def(
      "stats",
      [](int ordinal) {
        return dict_of(value_of(without_gil([&] { return figures_of(ordinal); })));
      },
      nb::arg("device") = 0,
      "All of Stillmap's memory on a device, in bytes: addresses, pages, the page pool, and each "
      "tag.");
}

}  // namespace stillmap::python
