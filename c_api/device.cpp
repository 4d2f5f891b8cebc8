// Devices.
#include "stillmap/vmm/device.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "stillmap/c_api/internal/objects.h"
#include "stillmap/c_api/internal/structs.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/json_writer.h"
#include "stillmap/vmm/base/try.h"

using namespace stillmap;
using namespace stillmap::c_api;

stillmap_status stillmap_device_count(int *count) noexcept {
  return enter("stillmap_device_count", [&]() -> status {
    if (count == nullptr) return missing("the place for the count is NULL");
    STILLMAP_ASSIGN_OR_RETURN(*count, device::count());
    return {};
  });
}

stillmap_status stillmap_device_open(int ordinal, stillmap_device **device) noexcept {
  return create("stillmap_device_open", handle_kind::device, device,
                [&]() -> result<std::unique_ptr<stillmap::device>> {
                  STILLMAP_ASSIGN_OR_RETURN(auto opened, stillmap::device::open(ordinal));
                  return std::make_unique<stillmap::device>(std::move(opened));
                });
}

stillmap_status stillmap_device_close(stillmap_device *device) noexcept {
  return destroy<stillmap::device>("stillmap_device_close", device, handle_kind::device);
}

stillmap_status stillmap_device_get_info(stillmap_device *device,
                                         stillmap_device_info *info) noexcept {
  return enter("stillmap_device_get_info", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
    STILLMAP_RETURN_IF_ERROR(check_struct(info, sizeof *info));
    const capabilities &can = d->capabilities();
    stillmap_device_info all{};
    all.ordinal = d->ordinal();
    all.vmm = can.vmm;
    all.posix_fd_export = can.posix_fd_export;
    all.fabric_export = can.fabric_export;
    all.memory_pools = can.memory_pools;
    all.integrated = can.integrated;
    all.total_memory_bytes = d->total_memory().bytes();
    all.page_bytes = can.page_bytes;
    all.recommended_page_bytes = can.recommended_page_bytes;
    all.largest_reservation_bytes = can.largest_reservation;
    all.mapping_ceiling = can.mapping_ceiling;
    const auto uuid = d->uuid();
    std::copy(uuid.begin(), uuid.end(), all.uuid);
    std::snprintf(all.name, sizeof all.name, "%s", d->name().c_str());
    write_struct(info, all);
    return {};
  });
}

stillmap_status stillmap_device_get_memory(stillmap_device *device, uint64_t *free_bytes,
                                           uint64_t *total_bytes) noexcept {
  return enter("stillmap_device_get_memory", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
    if (free_bytes == nullptr || total_bytes == nullptr) {
      return missing("the place for a result is NULL");
    }
    STILLMAP_ASSIGN_OR_RETURN(const memory_info now, d->memory());
    *free_bytes = now.free.bytes();
    *total_bytes = now.total.bytes();
    return {};
  });
}

stillmap_status stillmap_device_get_tags(stillmap_device *device, char **json) noexcept {
  clear_output(json);
  return enter("stillmap_device_get_tags", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(stillmap::device *const d, find_device(device));
    if (json == nullptr) return missing("the place for the text is NULL");
    struct sums {
      std::size_t blocks = 0, reserved = 0, mapped = 0, suspended = 0;
    };
    std::map<std::string, sums> tags;
    for (const block_record &b : d->space().blocks()) {
      sums &s = tags[b.tag];
      ++s.blocks;
      s.reserved += b.range.bytes;
      s.mapped += b.mapped_bytes;
      s.suspended += b.suspended_bytes;
    }
    json_writer out;
    out.begin_array();
    for (const auto &[tag, s] : tags) {
      out.begin_record().field("tag", tag).field("blocks", s.blocks);
      out.field("reserved_bytes", s.reserved).field("mapped_bytes", s.mapped);
      out.field("suspended_bytes", s.suspended).end();
    }
    out.end();
    STILLMAP_ASSIGN_OR_RETURN(*json, owned_text(out.text()));
    return {};
  });
}
