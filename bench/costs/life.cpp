#include "bench/costs/life.h"

namespace stillmap::costs {
namespace {

template <class T>
tl::unexpected<error> failed(const T &r) {
  return tl::unexpected(r.error());
}

}  // namespace

status live_once(const machine &m, std::size_t bytes, call_times &into) {
  const driver &drv = m.drv();
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

}  // namespace stillmap::costs
