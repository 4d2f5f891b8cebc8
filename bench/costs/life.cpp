#include "bench/costs/life.h"

#include <unistd.h>

namespace stillmap::costs {
namespace {

status mapped(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  piece p;
  auto at = into.time("cuMemAddressReserve", [&] { return m.reserve(bytes); });
  if (!at) return failed(at);
  p.at = std::move(*at);
  auto pages = into.time("cuMemCreate", [&] { return m.create(bytes); });
  if (!pages) return failed(pages);
  p.pages = std::move(*pages);
  auto there = into.time("cuMemMap", [&] { return m.map(p.begin(), bytes, p.pages.get()); });
  if (!there) return failed(there);
  p.there = std::move(*there);
  if (auto s = into.time("cuMemSetAccess", [&] { return m.allow(p.at.get()); }); !s) return s;
  const auto mode =
      into.time("cuMemGetAccess", [&] { return drv.get_access(p.begin(), on_device(0)); });
  if (!mode) return failed(mode);
  // CUDA 11.0; the rest is older, and is measured without it.
  if (drv.has(driver_call::MemRetainAllocationHandle)) {
    const auto again =
        into.time("cuMemRetainAllocationHandle", [&] { return drv.retain_physical(p.begin()); });
    if (!again) return failed(again);
    physical twin(drv, *again);
    if (const status s = twin.give_back(); !s) return s;
  }
  if (auto s = into.time("cuMemUnmap", [&] { return p.there.give_back(); }); !s) return s;
  if (auto s = into.time("cuMemRelease", [&] { return p.pages.give_back(); }); !s) return s;
  return into.time("cuMemAddressFree", [&] { return p.at.give_back(); });
}

status shared(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  auto pages =
      into.time("cuMemCreate (shareable)", [&] { return m.create(bytes, handle_type::posix_fd); });
  if (!pages) return failed(pages);
  const auto fd =
      into.time("cuMemExportToShareableHandle", [&] { return drv.export_fd(pages->get()); });
  if (!fd) return failed(fd);
  const auto imported =
      into.time("cuMemImportFromShareableHandle", [&] { return drv.import_fd(*fd); });
  ::close(*fd);
  if (!imported) return failed(imported);
  physical twin(drv, *imported);
  if (const status s = twin.give_back(); !s) return s;
  return into.time("cuMemRelease (shareable)", [&] { return pages->give_back(); });
}

status plain(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  const auto at = into.time("cuMemAlloc", [&] { return drv.allocate(bytes); });
  if (!at) return failed(at);
  plain_memory owner(drv, *at);
  return into.time("cuMemFree", [&] { return owner.give_back(); });
}

status ordered(const machine &m, stream_handle stream, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  // What is freed is kept until somebody waits: the second is what the pool is for.
  for (const char *const name : {"cuMemAllocAsync (empty pool)", "cuMemAllocAsync"}) {
    const auto at = into.time(name, [&] { return drv.allocate_async(bytes, stream); });
    if (!at) return failed(at);
    const status freed = into.time("cuMemFreeAsync", [&] { return drv.free_async(*at, stream); });
    if (!freed) {
      (void)drv.free(*at);
      return freed;
    }
  }
  return into.time("cuStreamSynchronize (empties the pool)",
                   [&] { return drv.synchronize_stream(stream); });
}

status pinned(const machine &m, stream_handle, std::size_t bytes, call_times &into) {
  const driver &drv = m.driver();
  const auto at = into.time("cuMemHostAlloc", [&] { return drv.allocate_host(bytes); });
  if (!at) return failed(at);
  pinned_memory owner(drv, *at);
  return into.time("cuMemFreeHost", [&] { return owner.give_back(); });
}

}  // namespace

const life mapped_life{true, mapped};
const life shared_life{true, shared};
const life plain_life{false, plain};
const life ordered_life{false, ordered};
const life pinned_life{false, pinned};

}  // namespace stillmap::costs
