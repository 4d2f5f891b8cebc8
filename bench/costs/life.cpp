#include "bench/costs/life.h"

#include <unistd.h>

#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {

status mapped_life(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  piece p;
  STILLMAP_ASSIGN_OR_RETURN(p.at,
                            into.time("cuMemAddressReserve", [&] { return m.reserve(bytes); }));
  STILLMAP_ASSIGN_OR_RETURN(p.pages, into.time("cuMemCreate", [&] { return m.create(bytes); }));
  STILLMAP_ASSIGN_OR_RETURN(
      p.there, into.time("cuMemMap", [&] { return m.map(p.begin(), bytes, p.pages.get()); }));
  STILLMAP_RETURN_IF_ERROR(into.time("cuMemSetAccess", [&] { return m.allow(p.at.get()); }));
  STILLMAP_RETURN_IF_ERROR(
      into.time("cuMemGetAccess", [&] { return drv.get_access(p.begin(), on_device(0)); }));
  // CUDA 11.0; the rest is older, and is measured without it.
  if (drv.has(driver_call::MemRetainAllocationHandle)) {
    STILLMAP_ASSIGN_OR_RETURN(
        const physical_handle again,
        into.time("cuMemRetainAllocationHandle", [&] { return drv.retain_physical(p.begin()); }));
    STILLMAP_RETURN_IF_ERROR(physical(drv, again).give_back());
  }
  STILLMAP_RETURN_IF_ERROR(into.time("cuMemUnmap", [&] { return p.there.give_back(); }));
  STILLMAP_RETURN_IF_ERROR(into.time("cuMemRelease", [&] { return p.pages.give_back(); }));
  return into.time("cuMemAddressFree", [&] { return p.at.give_back(); });
}

status shared_life(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  STILLMAP_ASSIGN_OR_RETURN(physical pages, into.time("cuMemCreate (shareable)", [&] {
    return m.create(bytes, handle_type::posix_fd);
  }));
  STILLMAP_ASSIGN_OR_RETURN(const int fd, into.time("cuMemExportToShareableHandle",
                                                    [&] { return drv.export_fd(pages.get()); }));
  const auto imported =
      into.time("cuMemImportFromShareableHandle", [&] { return drv.import_fd(fd); });
  ::close(fd);
  if (!imported) return tl::unexpected(imported.error());
  STILLMAP_RETURN_IF_ERROR(physical(drv, *imported).give_back());
  return into.time("cuMemRelease (shareable)", [&] { return pages.give_back(); });
}

status plain_life(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  STILLMAP_ASSIGN_OR_RETURN(const device_address at,
                            into.time("cuMemAlloc", [&] { return drv.allocate(bytes); }));
  plain_memory owner(drv, at);
  return into.time("cuMemFree", [&] { return owner.give_back(); });
}

status ordered_life(const machine &m, stream_handle stream, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  // The pool keeps freed memory until the stream is synchronized: the second allocation reuses it.
  for (const char *const name : {"cuMemAllocAsync (empty pool)", "cuMemAllocAsync"}) {
    STILLMAP_ASSIGN_OR_RETURN(const device_address at,
                              into.time(name, [&] { return drv.allocate_async(bytes, stream); }));
    const status freed = into.time("cuMemFreeAsync", [&] { return drv.free_async(at, stream); });
    if (!freed) {
      (void)drv.free(at);
      return freed;
    }
  }
  return into.time("cuStreamSynchronize (empties the pool)",
                   [&] { return drv.synchronize_stream(stream); });
}

status pinned_life(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  STILLMAP_ASSIGN_OR_RETURN(void *const at,
                            into.time("cuMemHostAlloc", [&] { return drv.allocate_host(bytes); }));
  pinned_memory owner(drv, at);
  return into.time("cuMemFreeHost", [&] { return owner.give_back(); });
}

}  // namespace stillmap::costs
