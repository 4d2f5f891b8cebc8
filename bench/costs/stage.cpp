#include "bench/costs/stage.h"

#include <unistd.h>

#include "stillmap/vmm/base/try.h"

namespace stillmap::costs {
namespace {

template <class T, class Into>
status keep(result<T> made, Into &into) {
  STILLMAP_ASSIGN_OR_RETURN(into, std::move(made));
  return {};
}

template <class T, class Owner>
status own(const stage &s, const result<T> &made, Owner &into) {
  STILLMAP_RETURN_IF_ERROR(made);
  into = Owner(s.m.driver(), *made);
  return {};
}

status nothing(stage &) {
  return {};
}
status reserve(stage &s) {
  return keep(s.m.reserve(s.m.page()), s.range);
}
status create(stage &s) {
  return keep(s.m.create(s.m.page()), s.pages);
}
status create_shareable(stage &s) {
  return keep(s.m.create(s.m.page(), handle_type::posix_fd), s.pages);
}
status map(stage &s) {
  return keep(s.m.map(s.range.get().begin, s.m.page(), s.pages.get()), s.there);
}
status allow(stage &s) {
  return s.m.allow(s.range.get());
}
template <status (*...Step)(stage &)>
status all(stage &s) {
  status done;
  ((done = done ? Step(s) : done), ...);
  return done;
}
status side_stream(stage &s) {
  return keep(s.m.create_stream(), s.side);
}
status allocate_ordered(stage &s) {
  return keep(s.m.driver().allocate_async(s.m.page(), s.side.get()), s.ordered);
}
status free_ordered(stage &s) {
  const status freed = s.m.driver().free_async(s.ordered, s.side.get());
  if (freed) s.ordered = {};
  return freed;
}
status allocate(stage &s) {
  return own(s, s.m.driver().allocate(s.m.page()), s.plain);
}
status pin(stage &s) {
  return own(s, s.m.driver().allocate_host(s.m.page()), s.pinned);
}
status export_pages(stage &s) {
  return keep(s.m.driver().export_fd(s.pages.get()), s.descriptor);
}

// The pool has room already: what is timed is the call, not the device's memory behind it.
status used_pool(stage &s) {
  STILLMAP_RETURN_IF_ERROR((all<side_stream, allocate_ordered>(s)));
  return free_ordered(s);
}

}  // namespace

stage::~stage() {
  if (descriptor >= 0) ::close(descriptor);
  if (ordered && !m.driver().free_async(ordered, side.get())) (void)m.driver().free(ordered);
  if (side) (void)m.driver().synchronize_stream(side.get());
}

const std::vector<staged_call> &staged_calls() {
  static const std::vector<staged_call> calls{
      {"cuMemAddressReserve", true, nothing, reserve},
      {"cuMemCreate", true, nothing, create},
      {"cuMemMap", true, all<reserve, create>, map},
      {"cuMemSetAccess", true, all<reserve, create, map>, allow},
      {"cuMemGetAccess", true, all<reserve, create, map, allow>,
       [](stage &s) {
         return outcome(s.m.driver().get_access(s.range.get().begin, on_device(0)));
       }},
      {"cuMemRetainAllocationHandle", true, all<reserve, create, map, allow>,
       [](stage &s) { return own(s, s.m.driver().retain_physical(s.range.get().begin), s.again); }},
      {"cuMemUnmap", true, all<reserve, create, map, allow>,
       [](stage &s) { return s.there.give_back(); }},
      {"cuMemRelease", true, create, [](stage &s) { return s.pages.give_back(); }},
      {"cuMemAddressFree", true, reserve, [](stage &s) { return s.range.give_back(); }},
      {"cuMemExportToShareableHandle", true, create_shareable, export_pages},
      {"cuMemImportFromShareableHandle", true, all<create_shareable, export_pages>,
       [](stage &s) { return own(s, s.m.driver().import_fd(s.descriptor), s.again); }},
      {"cuMemGetAllocationGranularity", true, nothing,
       [](stage &s) { return outcome(s.m.driver().granularity({on_device(0)}, false)); }},
      {"cuMemGetInfo", false, nothing,
       [](stage &s) { return outcome(s.m.driver().memory_info_now()); }},
      {"cuMemAlloc", false, nothing, allocate},
      {"cuMemFree", false, allocate, [](stage &s) { return s.plain.give_back(); }},
      {"cuMemAllocAsync", false, used_pool, allocate_ordered},
      {"cuMemFreeAsync", false, all<side_stream, allocate_ordered>, free_ordered},
      {"cuMemHostAlloc", false, nothing, pin},
      {"cuMemFreeHost", false, pin, [](stage &s) { return s.pinned.give_back(); }},
  };
  return calls;
}

}  // namespace stillmap::costs
