// save() and load() of the classes KVArena and KVSequenceArena.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "python/src/image_options.h"
#include "python/src/kv_arena.h"
#include "python/src/paths.h"
#include "python/src/streams.h"
#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {

inline std::string key_of(const nb::bytes &given) {
  return {given.c_str(), given.size()};
}
inline nb::bytes bytes_of_key(const std::string &key) {
  return nb::bytes(key.data(), key.size());
}

// `Cache` has the types of the arena, of an entry, and of an entry in Python; the names of the two operations;
// entry_of() and tuple_of(), from Python and back; and forget(), which frees what an entry names.
template <class Cache, class Class>
nb::dict save_prefix_cache(const Class &self, nb::handle path,
                           const std::vector<typename Cache::python_entry> &given,
                           nb::handle parent, nb::handle compression, bool replace, bool force) {
  const std::string file = path_of(path);
  image_request request = image_request_of(Cache::save, parent, compression, replace, force);
  std::vector<typename Cache::entry> entries;
  entries.reserve(given.size());
  for (const auto &each : given) entries.push_back(Cache::entry_of(each));
  return image_dict(self.run([&](const typename Cache::arena &a) {
    return with_host_memory(Cache::save, [&]() -> result<image::written> {
      STILLMAP_ASSIGN_OR_RETURN(const image::write_options options,
                                open_parent(std::move(request)));
      return prefix_cache::save(a, entries, file, options);
    });
  }));
}

template <class Cache, class Class>
nb::list load_prefix_cache(const Class &self, nb::handle path, nb::handle stream) {
  using arena = typename Cache::arena;
  const std::string file = path_of(path);
  const stream_ref s = stream_of(stream);
  const auto entries = self.run([&](arena &a) {
    return with_host_memory(Cache::load, [&] { return prefix_cache::load(a, file, s); });
  });
  try {
    nb::list list;
    for (const auto &e : entries) list.append(Cache::tuple_of(e));
    return list;
  } catch (...) {  // nobody would know what there is
    self.run([&](arena &a) -> status {
      for (const auto &e : entries) STILLMAP_RETURN_IF_ERROR(Cache::forget(a, e));
      return {};
    });
    throw;
  }
}

template <class Cache, class Class>
void bind_prefix_cache(nb::class_<Class> &c, const char *about_save, const char *about_load) {
  c.def("save", &save_prefix_cache<Cache, Class>, nb::arg("path"), nb::arg("entries"),
        nb::kw_only(), nb::arg("parent").none() = nb::none(),
        nb::arg("compression").none() = nb::none(), nb::arg("replace") = false,
        nb::arg("force") = false, about_save)
      .def("load", &load_prefix_cache<Cache, Class>, nb::arg("path"),
           nb::arg("stream").none() = nb::none(), about_load);
}

}  // namespace stillmap::python
