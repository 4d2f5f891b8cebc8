#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/src/checkpoint.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "python/src/safe_points.h"
#include "python/src/suspenders.h"
#include "python/src/text.h"
#include "stillmap/allocators/device_share.h"
#include "stillmap/checkpoint/base/host_room.h"
#include "stillmap/checkpoint/common/host_memory.h"
#include "stillmap/checkpoint/suspend/suspender.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

using checkpoint::backing_store;
using checkpoint::suspended_tag;
using checkpoint::suspender;

const char *name_of_store(backing_store store) {
  switch (store) {
    case backing_store::pinned_host:
      return "pinned_host";
    case backing_store::file:
      return "file";
    case backing_store::discard:
      return "discard";
  }
  return "";
}

backing_store store_of(const std::string &name) {
  for (const auto store :
       {backing_store::pinned_host, backing_store::file, backing_store::discard}) {
    if (name == name_of_store(store)) return store;
  }
  raise(error{make_error_code(errc::invalid_argument), "stillmap.suspend",
              "the store is none of pinned_host, file and discard"}
            .about(name));
}

nb::dict dict_of(const suspended_tag &s) {
  nb::dict d;
  d["tag"] = str_of(s.tag);
  d["store"] = name_of_store(s.store);
  d["places"] = s.places;
  d["nbytes"] = s.bytes;
  d["released_bytes"] = s.released.bytes();
  return d;
}

nb::dict suspend_tag(const std::string &tag, int device, const std::string &store,
                     nb::handle directory) {
  checkpoint::suspend_options options;
  options.store = store_of(store);
  if (!directory.is_none()) {
    options.directory = path_of(directory);
  }
  return dict_of(value_of(without_gil([&]() -> result<suspended_tag> {
    STILLMAP_ASSIGN_OR_RETURN(const auto of, suspender_of(device));
    return of->suspend(tag, options);
  })));
}

// Where too little memory is free, the processes that share the device are asked for it.
result<suspended_tag> resume_tag(suspender &of, const std::string &tag, int device) {
  auto back = of.resume(tag);
  const auto is_short = [&] {
    return !back && back.error().is(errc::out_of_memory) &&
           back.error().code != std::errc::not_enough_memory;
  };
  const auto quota = is_short() ? known_share(device) : nullptr;
  if (quota == nullptr) return back;
  for (const suspended_tag &s : of.suspended()) {
    if (s.tag != tag) continue;
    if (const status asked = quota->make_room(s.released.bytes()); !asked) {
      return tl::unexpected(back.error().with({.cause = asked.error().message()}));
    }
    back = of.resume(tag);
    quota->end_room();
    break;
  }
  return back;
}

constexpr const char *no_room_for_backup =
    "the backup does not fit into the host memory that is free: back up to a disk, do without a "
    "backup, or pause fewer tags";

void check_room_for_backup(std::uint64_t nbytes) {
  const operation_scope scope("memory_saver.pause");
  check(checkpoint::check_host_room(nbytes, no_room_for_backup));
}

using host_array = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::device::cpu>;

host_array pinned_memory(std::size_t nbytes, int device) {
  using checkpoint::host_memory;
  const operation_scope scope("memory_saver.pause");
  auto made = value_of(without_gil([&]() -> result<host_memory> {
    STILLMAP_ASSIGN_OR_RETURN(const auto d, open_device(device));
    return host_memory::create(d, nbytes, no_room_for_backup);
  }));
  std::byte *const data = made.data();
  auto kept = std::make_unique<host_memory>(std::move(made));
  const nb::capsule owner(kept.get(),
                          [](void *memory) noexcept { delete static_cast<host_memory *>(memory); });
  kept.release();  // NOLINT: the capsule owns it
  return {data, {nbytes}, owner};
}

}  // namespace

void bind_suspend(nb::module_ &m) {
  m.def("_check_room_for_backup", &check_room_for_backup, nb::arg("nbytes"),
        "Raises OutOfMemoryError unless the host has room for so many bytes more.");
  m.def("_pinned_memory", &pinned_memory, nb::arg("nbytes"), nb::arg("device"),
        "Pinned host memory of exactly this size, as a DLPack capsule of bytes. The last reference "
        "frees it.");
  m.def(
      "suspend", &suspend_tag, nb::arg("tag"), nb::kw_only(), nb::arg("device") = 0,
      nb::arg("store") = "pinned_host", nb::arg("directory").none() = nb::none(),
      "Saves the contents of all memory with this tag and gives its pages back to the device. The\n"
      "addresses stay reserved. Waits for the device first. No other thread may use or change the\n"
      "memory of the tag meanwhile. Failure: nothing changed.\n"
      "store: 'pinned_host', 'file' (unnamed, in `directory`, $TMPDIR or /tmp), 'discard'.\n"
      "Raises InvalidArgumentError (no such tag), BusyError (suspended already, or in another "
      "call; a\n"
      "page is also used outside of the tag; a stream captures a graph), NotSupportedError "
      "('pinned_host'\n"
      "on a device that shares the host's memory), OutOfMemoryError (host memory; asked before any "
      "is\n"
      "pinned), OSError.");
  m.def(
      "resume",
      [](const std::string &tag, int device) {
        return dict_of(value_of(without_gil([&]() -> result<suspended_tag> {
          STILLMAP_ASSIGN_OR_RETURN(const auto of, suspender_of(device));
          auto back = resume_tag(*of, tag, device);
          if (back) safe_points::all().release(device, tag);
          return back;
        })));
      },
      nb::arg("tag"), nb::kw_only(), nb::arg("device") = 0,
      "Brings the memory of a suspended tag back at the same addresses, with its contents. Where "
      "too "
      "little\n"
      "is free, and allocators share the device by the name of a quota, other processes are asked "
      "for it.\n"
      "Raises OutOfMemoryError: the tag is suspended as before, so try again when there is "
      "memory.");
  m.def(
      "forget",
      [](const std::string &tag, int device) {
        check(without_gil([&]() -> status {
          STILLMAP_ASSIGN_OR_RETURN(const auto of, suspender_of(device));
          STILLMAP_RETURN_IF_ERROR(of->forget(tag));
          safe_points::all().release(device, tag);
          return {};
        }));
      },
      nb::arg("tag"), nb::kw_only(), nb::arg("device") = 0,
      "Drops the saved contents of a suspended tag for good; its memory does not come back, until\n"
      "GrowableBuffer.commit() maps new pages there.");
  m.def(
      "suspended",
      [](int device) {
        const auto all = without_gil([&] {
          const auto of = known_suspender(device);
          return of != nullptr ? of->suspended() : std::vector<suspended_tag>{};
        });
        nb::list list;
        for (const suspended_tag &s : all) list.append(dict_of(s));
        return list;
      },
      nb::arg("device") = 0,
      "The tags that are suspended. Waits for a suspension that is going on.");
}

}  // namespace stillmap::python
