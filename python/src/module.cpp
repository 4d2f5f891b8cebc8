// The module stillmap._native: all of Stillmap that Python needs in one shared object, which also
// exports the C functions of torch_allocator.h, so that PyTorch can load the same file.
#include <dlfcn.h>
#include <nanobind/nanobind.h>

#include <exception>

#include "python/src/allocator.h"
#include "python/src/buffer.h"
#include "python/src/checkpoint.h"
#include "python/src/control.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/exports.h"
#include "python/src/kv_arena.h"
#include "python/src/memory_map.h"
#include "python/src/page_sharing.h"
#include "python/src/publication.h"
#include "python/src/quota.h"
#include "python/src/replay.h"
#include "python/src/streams.h"
#include "python/src/timeline.h"
#include "python/src/torch.h"
#include "python/src/vector.h"
#include "stillmap/allocators/torch/torch_allocator.h"

namespace stillmap::python {
namespace {

nb::object plugin_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void *>(&stillmap_malloc), &info) == 0) {
    raise_invalid("stillmap.plugin_path", "the file of this module is not known");
  }
  PyObject *const path = PyUnicode_DecodeFSDefault(info.dli_fname);
  if (path == nullptr) throw nb::python_error();
  return nb::steal(path);
}

}  // namespace
}  // namespace stillmap::python

extern "C" PyObject *PyInit__native_of_main();  // of NB_MODULE

// What `import` calls. nanobind and the devices are of the process, and its objects of one interpreter: a
// second one would take them over. By number, because the stable ABI has no other way to ask.
extern "C" NB_EXPORT PyObject *PyInit__native() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
    PyErr_SetString(PyExc_ImportError,
                    "stillmap works in the main interpreter of a process only: use another process "
                    "instead of a subinterpreter");
    return nullptr;
  }
  return PyInit__native_of_main();
}

NB_MODULE(_native_of_main, m) {
  using namespace stillmap::python;
  // A program that ends with tensors in a C library's hands has leaked nothing that matters.
  nb::set_leak_warnings(false);
  m.def(
      "_set_leak_warnings", [](bool on) { nb::set_leak_warnings(on); }, nb::arg("on"),
      "For tests: report objects that are alive when the interpreter ends.");
  // A value of another type inside a list, a dictionary or an attribute.
  nb::register_exception_translator([](const std::exception_ptr &thrown, void *) {
    try {
      std::rethrow_exception(thrown);
    } catch (const nb::cast_error &) {
      PyErr_SetString(PyExc_TypeError, "an element of an argument has the wrong type");
    }
  });
  bind_errors(m);
  bind_streams(m);
  bind_devices(m);
  bind_memory_map(m);
  bind_quota(m);
  bind_allocator(m);
  bind_exports(m);
  bind_buffer(m);
  bind_vector(m);
  bind_kv_tensor(m);
  bind_kv_arena(m);
  bind_kv_sequence_arena(m);
  bind_suspend(m);
  bind_snapshot(m);
  bind_publication(m);
  bind_control(m);
  bind_torch(m);
  bind_torch_control(m);
  bind_page_sharing(m);
  bind_replay(m);
  bind_timeline(m);
  m.def("plugin_path", &plugin_path,
        "The file of this module. It also exports the C functions of docs/torch_plugin.md, for\n"
        "torch.cuda.memory.CUDAPluggableAllocator; there is one instance of Stillmap in the "
        "process.");
  m.def(
      "last_error", [] { return stillmap_last_error(); },
      "Why the last C function of this thread that returned NULL failed: c_malloc, "
      "stillmap_try_malloc.");
}
