// Devices, contexts, streams and fences.
#include "stillmap/vmm/context.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {

void add_device_operations(std::vector<operation> &all) {
  // What probing tries and cannot have is absent, so most of it may fail.
  const std::set<std::string> probing = {
      "cuDeviceGetUuid",
      "cuDeviceGetAttribute",
      "cuDeviceCanAccessPeer",
      "cuDeviceGetCount",
      "cuDeviceTotalMem",
      "cuMemGetAllocationGranularity",
      "cuMemCreate",
      "cuMemMap",
      "cuMemSetAccess",
      "cuMemAddressReserve",
      "cuMemExportToShareableHandle",
      "cuMemAllocAsync",
      "cuMemFreeAsync",
      "cuStreamCreate",
      "cuStreamSynchronize",
      "cuCtxGetCurrent",
  };
  all.push_back({.name = "device open",
                 .set = [](bench &) {},
                 .run = [](bench &w) -> status {
                   auto d = device::open(*w.drv, 0);
                   return outcome(d);
                 },
                 .may_survive = probing,
                 .vmm = false,
                 .own_device = true});
  all.push_back({.name = "device count",
                 .set = [](bench &) {},
                 .run = [](bench &) { return outcome(device::count()); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "device memory",
                 .set = [](bench &) {},
                 .run = [](bench &w) { return outcome(w.dev->memory()); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "primary_context retain",
                 .set = [](bench &) {},
                 .run = [](bench &w) { return outcome(primary_context::retain(*w.drv, 0)); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "stream create",
                 .set = [](bench &) {},
                 .run = [](bench &w) -> status {
                   auto made = stream::create(*w.dev);
                   if (made) w.s = std::move(*made);
                   return outcome(made);
                 },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "stream synchronize",
                 .set = [](bench &w) { w.make_stream(); },
                 .run = [](bench &w) { return w.s->synchronize(); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "stream idle",
                 .set = [](bench &w) { w.make_stream(); },
                 .run = [](bench &w) { return outcome(w.s->idle()); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "fence after",
                 .set = [](bench &w) { w.make_stream(); },
                 .run = [](bench &w) { return outcome(fence::after(*w.dev, *w.s)); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "fence passed",
                 .set = [](bench &w) { w.hold_fence(); },
                 .run = [](bench &w) -> status {
                   const auto passed = w.idle.passed();
                   if (passed && *passed) w.note = "it has passed";
                   return outcome(passed);
                 },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "fence wait",
                 .set =
                     [](bench &w) {
                       w.make_stream();
                       w.idle = *fence::after(*w.dev, *w.s);
                     },
                 .run = [](bench &w) { return fence(w.idle).wait(); },
                 .may_survive = {},
                 .vmm = false});
  all.push_back({.name = "fence make_wait",
                 .set =
                     [](bench &w) {
                       w.hold_fence();
                       w.make_stream();
                     },
                 .run = [](bench &w) { return w.idle.make_wait(*w.dev, *w.s); },
                 .may_survive = {},
                 .vmm = false});
}

}  // namespace stillmap::testing
