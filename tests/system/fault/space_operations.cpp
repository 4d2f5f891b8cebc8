// Operations of reservation, mapping and address_space.
#include "stillmap/vmm/remap.h"
#include "tests/support/host_memory.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

void reserve_space(bench &w, std::size_t pages) {
  w.space = std::move(*reservation::create(*w.dev, pages * w.page()));
}

void take_pages(bench &w, std::size_t n) {
  if (!w.dev->pool()->acquire(n, w.pages)) throw std::runtime_error("acquire");
}

// The operations do not allocate these.
std::vector<access_grant> reads(const bench &w) {
  const allow_host_allocations test;
  return {{on_device(w.dev->ordinal()), access_mode::read}};
}

std::vector<access_grant> writes(const bench &w) {
  const allow_host_allocations test;
  return {{on_device(w.dev->ordinal()), access_mode::read_write}};
}

}  // namespace

void add_space_operations(std::vector<operation> &all) {
  all.push_back({.name = "reservation create",
                 .set = [](bench &) {},
                 .run = [](bench &w) -> status {
                   auto made = reservation::create(*w.dev, 4 * w.page());
                   if (made) w.space = std::move(*made);
                   return outcome(made);
                 },
                 .may_survive = {}});
  all.push_back({.name = "mapping create",
                 .set =
                     [](bench &w) {
                       reserve_space(w, 4);
                       take_pages(w, 1);
                     },
                 .run = [](bench &w) -> status {
                   if (w.at_hand) return {};
                   auto made = mapping::create(*w.space, w.page(), w.pages[0]);
                   if (made) w.at_hand = std::move(*made);
                   return outcome(made);
                 },
                 .may_survive = {}});
  const auto mapped = [](bench &w) {
    reserve_space(w, 4);
    take_pages(w, 1);
    w.at_hand = std::move(*mapping::create(*w.space, 0, w.pages[0]));
  };
  all.push_back({.name = "mapping set_access",
                 .set = mapped,
                 .run = [](bench &w) { return w.at_hand->set_access(reads(w)); },
                 .may_survive = {}});
  all.push_back({.name = "mapping unmap",
                 .set = mapped,
                 .run = [](bench &w) { return w.at_hand->unmap(fence()); },
                 .may_survive = {}});
  all.push_back({.name = "mapping unmap, fence pending",
                 .set =
                     [mapped](bench &w) {
                       mapped(w);
                       w.hold_fence();
                     },
                 .run = [](bench &w) { return w.at_hand->unmap(w.idle); },
                 .may_survive = {}});
  // Two runs of new pages, an alias, one page replaced, one gone, one of another access.
  all.push_back({.name = "address_space apply",
                 .set =
                     [](bench &w) {
                       reserve_space(w, 12);
                       take_pages(w, 9);
                       remap_plan plan(writes(w));
                       for (std::size_t i = 0; i < 4; ++i) {
                         plan.map(w.space->range().begin + i * w.page(), w.pages[i]);
                       }
                       if (!w.dev->space().apply(std::move(plan)))
                         throw std::runtime_error("apply");
                     },
                 .run =
                     [](bench &w) {
                       const device_address at = w.space->range().begin;
                       const auto slot = [&](std::size_t i) { return at + i * w.page(); };
                       remap_plan plan(writes(w));
                       plan.map(slot(5), w.pages[4]);
                       plan.map(slot(6), w.pages[5]);
                       plan.map(slot(9), w.pages[6], reads(w));
                       plan.alias(slot(7), {slot(1), w.page()});
                       plan.unmap({slot(0), w.page()});
                       plan.unmap({slot(2), w.page()});
                       plan.map(slot(2), w.pages[7]);
                       plan.grant({slot(3), w.page()}, reads(w));
                       return w.dev->space().apply(std::move(plan));
                     },
                 .may_survive = {}});
  // The same, with what the ledger says of each mapping observed.
  all.push_back({.name = "address_space retire",
                 .set =
                     [](bench &w) {
                       reserve_space(w, 4);
                       take_pages(w, 2);
                       remap_plan plan(writes(w));
                       plan.map(w.space->range().begin, w.pages[0]);
                       plan.map(w.space->range().begin + w.page(), w.pages[1]);
                       if (!w.dev->space().apply(std::move(plan))) throw std::runtime_error("map");
                     },
                 .run =
                     [](bench &w) {
                       return w.dev->space().retire(
                           w.space->block(), {w.space->range().begin, 2 * w.page()}, fence());
                     },
                 .may_survive = {}});
  all.push_back({.name = "address_space settle",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 6, 4);
                       w.make_stream();
                       w.hold_fence();
                       if (!w.a.buffer->decommit(w.page(), 2 * w.page(), w.idle)) {
                         throw std::runtime_error("decommit");
                       }
                       w.let_pass();
                     },
                 .run = [](bench &w) { return w.dev->space().collect_range(w.a.buffer->range()); },
                 .may_survive = {},
                 .calls = "address_space::collect_range"});
  // It cannot return an error: what could not be collected retires on, and the sink is told.
  all.push_back(
      {.name = "address_space collect",
       .set =
           [](bench &w) {
             w.make(w.a, 6, 4);
             w.hold_fence();
             if (!w.a.buffer->decommit(w.page(), 2 * w.page(), w.idle)) {
               throw std::runtime_error("decommit");
             }
             w.let_pass();
           },
       .run = [](bench &w) -> status {
         w.dev->space().collect();
         w.dev->space().collect();
         return {};
       },
       .may_survive = {"cuEventQuery", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuMemUnmap"},
       .may_tell = {"cuEventQuery"}});
}

}  // namespace stillmap::testing
