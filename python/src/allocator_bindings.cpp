// The class CachingAllocator: arguments and results of python_allocator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "python/src/allocator.h"
#include "python/src/errors.h"
#include "python/src/memory_map.h"
#include "python/src/paths.h"
#include "python/src/quota.h"
#include "python/src/streams.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

void *pointer_of(std::uint64_t address) {
  return reinterpret_cast<void *>(static_cast<std::uintptr_t>(address));
}

nb::object limit_or_none(std::size_t bytes) {
  return bytes == SIZE_MAX ? nb::none() : nb::object(nb::int_(bytes));
}

nb::dict dict_of(const release_report &r) {
  nb::dict d;
  d["released"] = r.released;
  d["kept"] = r.kept;
  d["private_pools"] = r.private_pools;
  d["capturing"] = r.capturing;
  d["pending_free"] = r.pending_free;
  d["page_edges"] = r.page_edges;
  return d;
}

nb::dict dict_of(const arena_stats &a) {
  nb::dict d;
  d["id"] = a.id;
  d["pool"] = a.pool;
  d["stream"] = number_of(a.stream);
  d["live"] = a.live;
  d["live_peak"] = a.live_peak;
  d["requested"] = a.requested;
  d["blocks"] = a.blocks;
  d["pending_free"] = a.pending_free;
  d["committed"] = a.committed;
  d["reserved"] = a.reserved;
  d["aliased"] = a.aliased;
  d["cached"] = a.cached;
  d["free_whole_pages"] = a.free_whole_pages;
  d["page_edges"] = a.page_edges;
  d["allocations"] = a.allocations;
  d["frees"] = a.frees;
  return d;
}

std::size_t limit_of(const std::optional<std::size_t> &given) {
  return given.value_or(SIZE_MAX);
}

// Runs `call` on the allocator without the GIL; the last reference to it may be dropped there, too.
template <class Call>
auto on_heap(const python_allocator &self, const char *operation, Call call) {
  auto heap = self.use(operation);
  return without_gil([&] {
    auto answer = call(*heap);
    heap.reset();
    return answer;
  });
}

void free_block(const python_allocator &self, std::uint64_t ptr, nb::handle stream) {
  const auto s = optional_stream_of(stream);
  if (forked_after_use()) return;  // destructors free there what is the parent's
  check(on_heap(self, "CachingAllocator.free", [&](caching_allocator &heap) {
    return s ? heap.free(pointer_of(ptr), *s) : heap.free(pointer_of(ptr));
  }));
}

result<std::string> json_of(const caching_allocator &heap) {
  STILLMAP_ASSIGN_OR_RETURN(const heap_snapshot s, snapshot_of(heap));
  return to_json(s);
}
result<std::string> pickle_of(const caching_allocator &heap) {
  STILLMAP_ASSIGN_OR_RETURN(const heap_snapshot s, snapshot_of(heap));
  return to_torch_pickle(s);
}

// stillmap.record(): where new allocators write their traces. With the GIL.
std::string &record_default() {
  static std::string *const path = new std::string;
  return *path;
}

void construct_heap(python_allocator *self, int device, const std::string &tag,
                    std::optional<std::size_t> limit, std::optional<std::size_t> soft_limit,
                    std::size_t page_size, std::size_t create_ahead,
                    const std::vector<int> &peer_devices, nb::handle record_to,
                    nb::object on_out_of_memory, std::uint64_t hint, const python_quota *quota,
                    const std::optional<std::string> &share,
                    std::optional<std::uint64_t> share_limit) {
  caching_allocator_options options;
  if (quota != nullptr) options.quota = quota->use("CachingAllocator");
  auto shares = share_of("CachingAllocator", share, share_limit);
  if (quota != nullptr && shares) {
    raise_invalid("CachingAllocator", "a quota and the name of one are given: give one of them");
  }
  options.hint = device_address(hint);
  options.limit = limit_of(limit);
  options.soft_limit = limit_of(soft_limit);
  options.page_bytes = page_size;
  options.create_ahead_bytes = create_ahead;
  options.peer_devices = peer_devices;
  options.record_to = path_of(record_to);
  if (options.record_to.empty()) options.record_to = record_default();
  new (self) python_allocator(device, tag, std::move(options), std::move(shares),
                              std::move(on_out_of_memory));
}

// The callback may refer to the allocator: the collector has to see the circle.
int traverse_heap(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const auto *const heap = nb::inst_ptr<python_allocator>(self);
  if (heap->callback()) Py_VISIT(heap->callback()->function.ptr());
  return 0;
}
int clear_heap(PyObject *self) {
  if (!nb::inst_ready(self)) return 0;
  const auto *const heap = nb::inst_ptr<python_allocator>(self);
  if (heap->callback()) heap->callback()->function.reset();
  return 0;
}
const PyType_Slot heap_slots[] = {{Py_tp_traverse, reinterpret_cast<void *>(traverse_heap)},
                                  {Py_tp_clear, reinterpret_cast<void *>(clear_heap)},
                                  {0, nullptr}};

void bind_requests(nb::class_<python_allocator> &c) {
  c.def(
       "allocate",
       [](python_allocator &self, std::size_t nbytes, nb::handle stream, std::size_t alignment,
          bool zero) {
         return self.allocate(nbytes, stream_of(stream), {alignment, zero});
       },
       nb::arg("nbytes"), nb::arg("stream").none() = nb::none(), nb::kw_only(),
       nb::arg("alignment") = 512, nb::arg("zero") = false,
       "The address of a new block for work queued on the stream from now on; 0 for 0 bytes.\n"
       "Raises OutOfMemoryError, InvalidArgumentError, or what on_out_of_memory raised.")
      .def("free", &free_block, nb::arg("ptr"), nb::arg("stream").none() = nb::ellipsis(),
           "Frees a block; 0 is ignored. `stream`: that of the last use; without it, the one it "
           "was\n"
           "allocated for. Does nothing in a forked child. Raises InvalidArgumentError if no block "
           "begins\n"
           "there.")
      .def(
          "record_use",
          [](const python_allocator &self, std::uint64_t ptr, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            check(on_heap(self, "CachingAllocator.record_use", [&](caching_allocator &heap) {
              return heap.record_use(pointer_of(ptr), s);
            }));
          },
          nb::arg("ptr"), nb::arg("stream").none(),
          "Work queued on the stream uses the block, too: after its free, the memory waits for it.")
      .def(
          "forget_stream",
          [](const python_allocator &self, nb::handle stream) {
            const stream_ref s = stream_of(stream);
            check(on_heap(self, "CachingAllocator.forget_stream",
                          [&](caching_allocator &heap) { return heap.forget_stream(s); }));
          },
          nb::arg("stream").none(), "Call it before a stream is destroyed.")
      .def(
          "empty_cache",
          [](const python_allocator &self) {
            return dict_of(value_of(on_heap(self, "CachingAllocator.empty_cache",
                                            [](caching_allocator &h) { return h.empty_cache(); })));
          },
          "Releases free pages to the device. Bytes released, and bytes that stayed, by the "
          "reason.")
      .def(
          "trim",
          [](const python_allocator &self, std::size_t keep) {
            return dict_of(
                value_of(on_heap(self, "CachingAllocator.trim",
                                 [&](caching_allocator &heap) { return heap.trim(keep); })));
          },
          nb::arg("keep"), "empty_cache() until at most `keep` bytes of free pages are left.")
      .def(
          "owns",
          [](const python_allocator &self, std::uint64_t ptr) {
            return self.use("CachingAllocator.owns")->owns(pointer_of(ptr));
          },
          nb::arg("ptr"), "Whether the address is in this allocator's address ranges.")
      .def(
          "usable_size",
          [](const python_allocator &self, std::uint64_t ptr) {
            return value_of(on_heap(
                self, "CachingAllocator.usable_size",
                [&](caching_allocator &heap) { return heap.usable_size(pointer_of(ptr)); }));
          },
          nb::arg("ptr"), "Bytes of a block, rounding included.");
}

void bind_reports(nb::class_<python_allocator> &c) {
  c.def(
       "stats",
       [](const python_allocator &self) {
         std::size_t limit = 0;
         const auto s = on_heap(self, "CachingAllocator.stats", [&](caching_allocator &heap) {
           limit = heap.limit();
           return heap.stats();
         });
         return dict_of_stats(s, limit);
       },
       "Bytes and counts: `total`, `arenas` (one for each stream), pages created, moved and "
       "released.")
      .def(
          "reset_peaks",
          [](const python_allocator &self) {
            on_heap(self, "CachingAllocator.reset_peaks", [](caching_allocator &heap) {
              heap.reset_peaks();
              return true;
            });
          },
          "From here on the peaks in stats() are those since this call.")
      .def(
          "memory_map",
          [](const python_allocator &self) {
            return value_of(
                on_heap(self, "CachingAllocator.memory_map",
                        [&](caching_allocator &heap) { return map_of(heap, self.tag()); }));
          },
          "The state of every address, to draw and to save.")
      .def(
          "record_history",
          [](const python_allocator &self, std::size_t events, unsigned stack_depth) {
            check(on_heap(self, "CachingAllocator.record_history", [&](caching_allocator &heap) {
              return heap.record_history({events, stack_depth});
            }));
          },
          nb::kw_only(), nb::arg("events") = history_options{}.events, nb::arg("stack_depth") = 0,
          "Keeps the last `events` events from now on, for to_json() and to_torch_pickle().")
      .def(
          "stop_history",
          [](const python_allocator &self) {
            on_heap(self, "CachingAllocator.stop_history", [](caching_allocator &heap) {
              heap.stop_history();
              return true;
            });
          },
          "Stops recording; what was recorded stays.")
      .def(
          "to_json",
          [](const python_allocator &self) {
            const std::string s = value_of(on_heap(self, "CachingAllocator.to_json", json_of));
            return nb::str(s.data(), s.size());
          },
          "Map, statistics and history as JSON: docs/heap_map.md.")
      .def(
          "to_torch_pickle",
          [](const python_allocator &self) {
            const std::string s =
                value_of(on_heap(self, "CachingAllocator.to_torch_pickle", pickle_of));
            return nb::bytes(s.data(), s.size());
          },
          "What torch.cuda.memory._snapshot() would return, pickled: pytorch.org/memory_viz reads "
          "it.")
      .def(
          "mark_iteration",
          [](const python_allocator &self) {
            on_heap(self, "CachingAllocator.mark_iteration", [](caching_allocator &heap) {
              heap.mark_iteration();
              return true;
            });
          },
          "Marks the end of an iteration in a recorded trace.");
}

void bind_lifetime(nb::class_<python_allocator> &c) {
  c.def("close", &python_allocator::close,
        "Waits for the device and releases all memory, blocks in use included. Every later call\n"
        "raises InvalidArgumentError. Calls that other threads are in end as usual; the last of "
        "them\n"
        "releases the memory.")
      .def_prop_ro("closed", &python_allocator::closed)
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](python_allocator &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def_prop_ro("device", &python_allocator::ordinal)
      .def_prop_ro("tag", &python_allocator::tag)
      .def_prop_rw(
          "limit",
          [](const python_allocator &self) {
            return limit_or_none(self.use("CachingAllocator.limit")->limit());
          },
          [](const python_allocator &self, std::optional<std::size_t> bytes) {
            on_heap(self, "CachingAllocator.limit", [&](caching_allocator &heap) {
              heap.set_limit(bytes.value_or(SIZE_MAX));
              return true;
            });
          },
          nb::for_setter(nb::arg("nbytes").none()),
          "Most bytes of device memory, or None; a smaller limit releases nothing.")
      .def_prop_ro(
          "c_param",
          [](python_allocator &self) { return reinterpret_cast<std::uintptr_t>(self.for_c()); },
          "First argument of the two functions. Valid for the whole process; after close() they do "
          "nothing.")
      .def_prop_ro(
          "c_malloc", [](const python_allocator &) { return c_malloc_address(); },
          "void *malloc(void *param, size_t nbytes, int device); NULL on failure: last_error().")
      .def_prop_ro(
          "c_free", [](const python_allocator &) { return c_free_address(); },
          "void free(void *param, void *ptr, int device).")
      .def_prop_ro(
          "c_functions",
          [](python_allocator &self) {
            const c_function_addresses of = c_functions_of(*self.for_c());
            return nb::make_tuple(of.allocate, of.free, of.empty_cache);
          },
          "void *malloc(size_t nbytes), void free(void *ptr), void empty_cache(void): of this "
          "allocator\n"
          "alone, for C code that passes no parameter. Blocks are for the legacy default stream. "
          "Valid for\n"
          "the whole process. Raises NotSupportedError after 64 allocators of a process.")
      .def("__repr__", [](const python_allocator &self) {
        return "<stillmap.CachingAllocator '" + self.tag() + "' on device " +
               std::to_string(self.ordinal()) + (self.closed() ? ", closed>" : ">");
      });
}

}  // namespace

nb::dict dict_of_stats(const caching_allocator_stats &s, std::size_t limit) {
  nb::dict d;
  d["total"] = dict_of(s.total);
  nb::list arenas;
  for (const arena_stats &a : s.arenas) arenas.append(dict_of(a));
  d["arenas"] = arenas;
  d["committed_peak"] = s.committed_peak;
  d["created_ahead"] = s.created_ahead;
  d["page_size"] = s.page_bytes;
  d["growths"] = s.growths;
  d["pages_created"] = s.pages_created;
  d["pages_moved"] = s.pages_moved;
  d["pages_recalled"] = s.pages_recalled;
  d["pages_released"] = s.pages_released;
  d["host_waits"] = s.host_waits;
  d["out_of_memory"] = s.out_of_memory;
  d["host_bytes"] = s.host_bytes;
  d["limit"] = limit_or_none(limit);
  return d;
}

void bind_allocator(nb::module_ &m) {
  nb::class_<python_allocator> c(
      m, "CachingAllocator", nb::is_final(), nb::type_slots(heap_slots),
      nb::is_weak_referenceable(),
      "A caching allocator for device memory that remaps free pages where memory is fragmented.\n"
      "Threads: safe. Streams: a block freed on its own stream is reusable there at once.");
  c.def(
      "__init__", &construct_heap, nb::arg("device") = 0, nb::kw_only(),
      nb::arg("tag") = "caching_allocator", nb::arg("limit").none() = nb::none(),
      nb::arg("soft_limit").none() = nb::none(), nb::arg("page_size") = 0,
      nb::arg("create_ahead") = 0, nb::arg("peer_devices") = std::vector<int>{},
      nb::arg("record_to") = "", nb::arg("on_out_of_memory").none() = nb::none(),
      nb::arg("hint") = 0, nb::arg("quota").none() = nb::none(),
      nb::arg("share").none() = nb::none(), nb::arg("share_limit").none() = nb::none(),
      "Sizes in bytes. Without a limit, the device's memory is one. `page_size`: the unit in "
      "which\n"
      "memory is created and moved, a power of two; 0: the device's granularity. "
      "`on_out_of_memory(nbytes)` is\n"
      "called when a request would fail; it returns True after it has freed memory. `hint`: the\n"
      "preferred address, for memory that another process restores (docs/python.md). `quota`: a "
      "SharedQuota that\n"
      "memory is reserved in; others are asked for memory before on_out_of_memory is called, and "
      "get cached\n"
      "memory of this allocator, if the quota has a thread. `share`: the name of such a quota, "
      "which the\n"
      "allocators of this process share, with a thread; of device n the name is followed by '.n', "
      "but for 0.\n"
      "`share_limit`: its limit where nobody takes part in it yet, in bytes; None: that of the "
      "quota, or the\n"
      "device's memory where it is new.");
  m.def(
      "_record_new_allocators_to", [](const std::string &path) { record_default() = path; },
      nb::arg("path"));
  bind_requests(c);
  bind_reports(c);
  bind_lifetime(c);
}

}  // namespace stillmap::python
