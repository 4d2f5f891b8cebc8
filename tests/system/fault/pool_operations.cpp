// Physical memory and page pools.
#include <future>

#include "tests/support/host_memory.h"
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

void make_pool(bench &w, page_pool_options options = {}) {
  auto made = page_pool::create(*w.dev, options);
  if (!made) throw std::runtime_error(made.error().message());
  w.pool = *made;
}

physical_properties exportable(const bench &w) {
  physical_properties p;
  p.location = on_device(w.dev->ordinal());
  if (w.dev->capabilities().posix_fd_export) p.exportable = handle_type::posix_fd;
  return p;
}

// The operation does not make it.
template <class T>
T made_anyway() {
  const allow_host_allocations test;
  return T();
}

// Keeps what was made or nothing.
template <class T>
status keep(std::optional<T> &in, result<T> made) {
  if (!made) return tl::unexpected<error>(made.error());
  in.reset();
  in.emplace(std::move(*made));
  return {};
}

}  // namespace

void add_pool_operations(std::vector<operation> &all) {
  all.push_back(
      {.name = "physical_memory create",
       .set = [](bench &) {},
       .run = [](bench &w) { return keep(w.memory, physical_memory::create(*w.dev, w.page())); },
       .may_survive = {}});
  all.push_back({.name = "physical_memory retain",
                 .set = [](bench &w) { w.make(w.a, 4, 1); },
                 .run =
                     [](bench &w) {
                       return keep(w.memory,
                                   physical_memory::retain(*w.dev, w.a.buffer->address() + 5));
                     },
                 .may_survive = {}});
  all.push_back({.name = "physical_memory export_fd",
                 .set =
                     [](bench &w) {
                       w.memory =
                           std::move(*physical_memory::create(*w.dev, w.page(), exportable(w)));
                     },
                 .run = [](bench &w) { return outcome(w.memory->export_fd()); },
                 .may_survive = {}});
  all.push_back({.name = "physical_memory import_fd",
                 .set =
                     [](bench &w) {
                       const auto made = physical_memory::create(*w.dev, w.page(), exportable(w));
                       w.fd = std::move(*made->export_fd());
                     },
                 .run =
                     [](bench &w) {
                       return keep(w.memory, physical_memory::import_fd(*w.dev, w.fd, w.page()));
                     },
                 .may_survive = {}});
  all.push_back({.name = "page_pool create",
                 .set = [](bench &) {},
                 .run = [](bench &w) { return outcome(page_pool::create(*w.dev)); },
                 .may_survive = {}});
  all.push_back({.name = "page_pool acquire, cold",
                 .set = [](bench &w) { make_pool(w); },
                 .run = [](bench &w) { return w.pool->acquire(3, w.pages); },
                 .may_survive = {}});
  all.push_back({.name = "page_pool acquire, half warm",
                 .set =
                     [](bench &w) {
                       make_pool(w);
                       if (!w.pool->prepare(2 * w.page())) throw std::runtime_error("prepare");
                     },
                 .run = [](bench &w) { return w.pool->acquire(4, w.pages); },
                 .may_survive = {}});
  const auto pages_behind_a_fence = [](bench &w) {
    make_pool(w);
    if (!w.pool->acquire(3, w.pages)) throw std::runtime_error("acquire");
    w.make_stream();
    w.idle = *fence::after(*w.dev, *w.s);
    for (page_ptr &p : w.pages) p.retire(w.idle);
    w.pages.clear();
    w.leave_free(0);
  };
  all.push_back({.name = "page_pool acquire, behind a fence, waiting on the host",
                 .set = pages_behind_a_fence,
                 .run = [](bench &w) { return w.pool->acquire(3, w.pages); },
                 .may_survive = {}});
  all.push_back({.name = "page_pool acquire, behind a fence, waiting on a stream",
                 .set =
                     [](bench &w) {
                       make_pool(w);
                       if (!w.pool->acquire(3, w.pages)) throw std::runtime_error("acquire");
                       w.hold_fence();
                       w.make_stream();
                       for (page_ptr &p : w.pages) p.retire(w.idle);
                       w.pages.clear();
                       w.leave_free(0);
                     },
                 .run = [](bench &w) { return w.pool->acquire(3, w.pages, *w.s); },
                 // Whatever says that memory has run out: waiting pages are next.
                 .may_survive = {"cuMemCreate", "cuCtxGetCurrent", "cuCtxPushCurrent"}});
  all.push_back({.name = "page_pool adopt",
                 .set =
                     [](bench &w) {
                       make_pool(w);
                       w.memory = std::move(*physical_memory::create(*w.dev, w.page()));
                       w.make(w.a, 4, 0);
                     },
                 .run = [](bench &w) -> status {
                   auto memory = physical_memory::create(*w.dev, w.page());
                   if (!memory) return outcome(memory);
                   return outcome(w.pool->adopt(std::move(*memory)));
                 },
                 .may_survive = {}});
  all.push_back({.name = "page_pool prepare",
                 .set = [](bench &w) { make_pool(w); },
                 .run = [](bench &w) { return w.pool->prepare(3 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "page_pool trim",
                 .set =
                     [](bench &w) {
                       make_pool(w);
                       if (!w.pool->prepare(3 * w.page())) throw std::runtime_error("prepare");
                     },
                 .run = [](bench &w) { return outcome(w.pool->trim()); },
                 .may_survive = {}});
  all.push_back({.name = "page_pool keep_ready",
                 .set = [](bench &w) { make_pool(w); },
                 .run = [](bench &w) -> status {
                   // The second job runs when the first is done: what is kept ready is there then.
                   w.pool->keep_ready(2 * w.page());
                   status queued;
                   while (queued && w.pool->stats().free.bytes() < 2 * w.page() &&
                          w.pool->stats().background_failures == 0) {
                     std::promise<void> ran = made_anyway<std::promise<void>>();
                     queued = w.pool->in_background(&w, [&] { ran.set_value(); });
                     if (queued) ran.get_future().wait();
                   }
                   w.pool->keep_ready(0);
                   return queued;
                 },
                 .may_survive = {"cuMemCreate", "cuCtxGetCurrent", "cuCtxPushCurrent"},
                 .calls = "page_pool::in_background"});
  all.push_back({.name = "page dropped over the watermark",
                 .set =
                     [](bench &w) {
                       page_pool_options options;
                       options.keep_free = 0;
                       make_pool(w, options);
                       if (!w.pool->acquire(1, w.pages)) throw std::runtime_error("acquire");
                     },
                 .run = [](bench &w) -> status {
                   w.pages.clear();
                   return {};
                 },
                 .may_survive = {"cuCtxGetCurrent", "cuCtxPushCurrent"}});
}

}  // namespace stillmap::testing
