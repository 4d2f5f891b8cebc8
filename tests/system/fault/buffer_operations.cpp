// Growable buffers of pages, alone.
#include "tests/system/fault/sweep.h"

namespace stillmap::testing {
namespace {

void must(const status &s) {
  if (!s) throw std::runtime_error(s.error().message());
}

// `a` full to its end, and the next addresses taken.
void walled_in(bench &w) {
  w.make(w.a, 4, 4);
  reservation_options options;
  options.hint = w.a.buffer->range().end();
  auto wall = reservation::create(*w.dev, w.page(), options);
  if (!wall) throw std::runtime_error(wall.error().message());
  w.blocker = std::move(*wall);
}

void retiring_tail(bench &w) {
  w.make(w.a, 8, 4);
  w.hold_fence();
  w.make_stream();
  must(w.a.buffer->resize(w.page()));
  must(w.a.buffer->shrink_to_fit(w.idle));
}

}  // namespace

void add_buffer_operations(std::vector<operation> &all) {
  all.push_back({.name = "growable_buffer create",
                 .set = [](bench &) {},
                 .run =
                     [](bench &w) {
                       buffer_options options;
                       options.reserve_bytes = 8 * w.page();
                       auto made = growable_buffer::create(*w.dev, options);
                       if (!made) return outcome(made);
                       w.a.buffer = std::move(*made);
                       w.a.first_address = w.a.buffer->address();
                       return status{};
                     },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, cold",
                 .set = [](bench &w) { w.make(w.a, 8, 2); },
                 .run = [](bench &w) { return w.a.buffer->resize(5 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, warm",
                 .set =
                     [](bench &w) {
                       must(w.dev->pool()->prepare(6 * w.page()));
                       w.make(w.a, 8, 2);
                     },
                 .run = [](bench &w) { return w.a.buffer->resize(5 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, more addresses behind",
                 .set = [](bench &w) { w.make(w.a, 4, 4); },
                 .run = [](bench &w) { return w.a.buffer->resize(7 * w.page()); },
                 // It moves, or asks for fewer.
                 .may_survive = {"cuMemAddressReserve", "cuCtxGetCurrent", "cuCtxPushCurrent"},
                 .compare_after = false});
  all.push_back({.name = "growable_buffer resize, larger reservation elsewhere",
                 .set = walled_in,
                 .run = [](bench &w) { return w.a.buffer->resize(7 * w.page()); },
                 .may_survive = {"cuMemAddressReserve", "cuCtxGetCurrent", "cuCtxPushCurrent"},
                 .compare_after = false});
  all.push_back({.name = "growable_buffer resize, larger reservation elsewhere, on a stream",
                 .set =
                     [](bench &w) {
                       walled_in(w);
                       w.hold_fence();
                     },
                 .run = [](bench &w) { return w.a.buffer->resize(7 * w.page(), *w.held); },
                 .may_survive = {"cuMemAddressReserve", "cuCtxGetCurrent", "cuCtxPushCurrent"},
                 .compare_after = false});
  all.push_back({.name = "growable_buffer resize, striped over two pools",
                 .set =
                     [](bench &w) {
                       w.pool = *page_pool::create(*w.dev);
                       w.make(w.a, 8, 2, {w.dev->pool(), w.pool});
                     },
                 .run = [](bench &w) { return w.a.buffer->resize(5 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer reserve",
                 .set = [](bench &w) { w.make(w.a, 8, 1); },
                 .run = [](bench &w) { return w.a.buffer->reserve(3 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer shrink_to_fit",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 4);
                       must(w.a.buffer->resize(w.page()));
                     },
                 .run = [](bench &w) { return w.a.buffer->shrink_to_fit(); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer shrink_to_fit, fence pending",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 4);
                       w.hold_fence();
                       must(w.a.buffer->resize(w.page()));
                     },
                 .run = [](bench &w) { return w.a.buffer->shrink_to_fit(w.idle); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, reviving on a stream",
                 .set = retiring_tail,
                 .run = [](bench &w) { return w.a.buffer->resize(4 * w.page(), *w.s); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, reviving some and mapping more",
                 .set = retiring_tail,
                 .run = [](bench &w) { return w.a.buffer->resize(7 * w.page(), *w.s); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer resize, reviving with a wait on the host",
                 .set =
                     [](bench &w) {
                       retiring_tail(w);
                       w.let_pass();
                     },
                 .run = [](bench &w) { return w.a.buffer->resize(4 * w.page()); },
                 .may_survive = {}});
  all.push_back(
      {.name = "growable_buffer resize, stealing what retires elsewhere",
       .set =
           [](bench &w) {
             retiring_tail(w);
             w.make(w.b, 8, 1);
             w.leave_free(1);
           },
       .run = [](bench &w) { return w.b.buffer->resize(4 * w.page(), *w.s); },
       // Out of memory is where stealing begins, whoever says it. Looking first whether
       // what retires may be undone is nobody's order: who fails there is the sink's.
       .may_survive = {"cuMemCreate", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuEventQuery"},
       .may_tell = {"cuEventQuery"},
       .compare_after = false});
  all.push_back({.name = "growable_buffer commit, two gaps",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 1);
                       must(w.a.buffer->commit(3 * w.page(), w.page()));
                       w.fill(w.a, 3 * w.page(), w.page());
                     },
                 .run = [](bench &w) { return w.a.buffer->commit(0, 6 * w.page()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer decommit, two runs",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 2);
                       must(w.a.buffer->commit(4 * w.page(), 2 * w.page()));
                       w.fill(w.a, 4 * w.page(), 2 * w.page());
                     },
                 .run = [](bench &w) { return w.a.buffer->decommit(w.page(), 4 * w.page()); },
                 .may_survive = {}});
  all.push_back(
      {.name = "growable_buffer decommit, fence pending",
       .set =
           [](bench &w) {
             w.make(w.a, 8, 4);
             w.hold_fence();
           },
       .run = [](bench &w) { return w.a.buffer->decommit(w.page(), 2 * w.page(), w.idle); },
       .may_survive = {}});
  all.push_back({.name = "growable_buffer close",
                 .set = [](bench &w) { w.make(w.a, 8, 3); },
                 .run = [](bench &w) { return w.a.buffer->close(fence()); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer close, fence pending",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 3);
                       w.hold_fence();
                     },
                 .run = [](bench &w) { return w.a.buffer->close(w.idle); },
                 .may_survive = {}});
}

void add_sharing_operations(std::vector<operation> &all) {
  all.push_back({.name = "growable_buffer alias",
                 .set = [](bench &w) { w.make(w.a, 8, 3); },
                 .run =
                     [](bench &w) {
                       auto made = w.a.buffer->alias(w.page(), 2 * w.page(), 2);
                       if (!made) return outcome(made);
                       w.b.buffer = std::move(*made);
                       w.b.first_address = w.b.buffer->address();
                       return status{};
                     },
                 .may_survive = {},
                 .compare_after = true});
  all.push_back({.name = "growable_buffer fork",
                 .set =
                     [](bench &w) {
                       w.make(w.a, 8, 2);
                       must(w.a.buffer->commit(4 * w.page(), w.page()));
                     },
                 .run = [](bench &w) -> status {
                   auto made = w.a.buffer->fork();
                   if (made) {
                     w.b.buffer = std::move(*made);
                     w.b.first_address = w.b.buffer->address();
                   }
                   return outcome(made);
                 },
                 .may_survive = {}});
  const auto forked = [](bench &w) {
    w.make(w.a, 8, 4);
    auto made = w.a.buffer->fork();
    if (!made) throw std::runtime_error(made.error().message());
    w.b.buffer = std::move(*made);
    w.b.first_address = w.b.buffer->address();
    w.b.known = w.a.known;
    w.make_stream();
  };
  all.push_back(
      {.name = "growable_buffer make_writable, shared",
       .set = forked,
       .run = [](bench &w) { return w.b.buffer->make_writable(w.page(), 2 * w.page(), *w.s); },
       .may_survive = {}});
  all.push_back({.name = "growable_buffer make_writable, shared and not",
                 .set =
                     [forked](bench &w) {
                       forked(w);
                       // One page of b becomes its own, and a's of that slot unshared with it.
                       must(w.b.buffer->make_writable(0, 1, *w.s));
                     },
                 .run = [](bench &w) { return w.a.buffer->make_writable(0, 4 * w.page(), *w.s); },
                 .may_survive = {}});
  all.push_back({.name = "growable_buffer make_writable, exclusive",
                 .set =
                     [forked](bench &w) {
                       forked(w);
                       must(w.b.buffer->close(fence()));
                       w.b = {};
                     },
                 .run = [](bench &w) { return w.a.buffer->make_writable(0, 4 * w.page(), *w.s); },
                 .may_survive = {}});
  const auto two = [](bench &w) {
    w.make(w.a, 8, 4);
    w.make(w.b, 8, 1);
    w.b.known.push_back({device_address(w.page()), 2 * w.page()});
  };
  const auto splice = [](bench &w) {
    return w.a.buffer->splice(w.page(), 2 * w.page(), *w.b.buffer, w.page());
  };
  all.push_back({.name = "growable_buffer splice", .set = two, .run = splice, .may_survive = {}});
  all.push_back({.name = "growable_buffer splice, fence pending",
                 .set =
                     [two](bench &w) {
                       two(w);
                       w.hold_fence();
                     },
                 .run =
                     [](bench &w) {
                       return w.a.buffer->splice(w.page(), 2 * w.page(), *w.b.buffer, w.page(),
                                                 w.idle);
                     },
                 .may_survive = {}});
}

void add_copying_operations(std::vector<operation> &all) {
  const auto holding = [](std::size_t pages) {
    return [pages](bench &w) {
      w.copying = true;
      w.make(w.a, 8, pages);
    };
  };
  const auto add = [&](operation o) {
    o.vmm = false;
    const std::string name = o.name.substr(std::string("copying buffer ").size());
    o.calls = "growable_buffer::" + name.substr(0, name.find(','));
    all.push_back(std::move(o));
  };
  add({.name = "copying buffer resize, first",
       .set = holding(0),
       .run = [](bench &w) { return w.a.buffer->resize(2 * w.page()); },
       .may_survive = {},
       .compare_after = false});  // the first address is no move
  add({.name = "copying buffer resize",
       .set = holding(2),
       .run = [](bench &w) { return w.a.buffer->resize(5 * w.page()); },
       .may_survive = {}});
  add({.name = "copying buffer resize, doubling",
       .set = holding(4),
       .run = [](bench &w) { return w.a.buffer->resize(5 * w.page()); },
       // Where twice as much cannot be had, just enough may.
       .may_survive = {"cuMemAlloc", "cuMemcpyDtoD", "cuMemFree", "cuCtxSynchronize",
                       "cuCtxGetCurrent", "cuCtxPushCurrent"},
       .compare_after = false});
  add({.name = "copying buffer commit",
       .set = holding(1),
       .run = [](bench &w) { return w.a.buffer->commit(0, 3 * w.page()); },
       .may_survive = {}});
  add({.name = "copying buffer shrink_to_fit",
       .set =
           [holding](bench &w) {
             holding(4)(w);
             must(w.a.buffer->resize(w.page()));
             w.a.known = {{device_address(0), w.page()}};
           },
       .run = [](bench &w) { return w.a.buffer->shrink_to_fit(); },
       .may_survive = {}});
  add({.name = "copying buffer fork",
       .set = holding(2),
       .run = [](bench &w) -> status {
         auto made = w.a.buffer->fork();
         if (!made) return outcome(made);
         w.b.buffer = std::move(*made);
         w.b.first_address = w.b.buffer->address();
         return {};
       },
       .may_survive = {}});
  add({.name = "copying buffer close",
       .set = holding(2),
       .run = [](bench &w) { return w.a.buffer->close(fence()); },
       .may_survive = {}});
}

}  // namespace stillmap::testing
