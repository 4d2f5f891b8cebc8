// What the classes KVArena and KVSequenceArena have in common.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/src/dtype.h"
#include "python/src/exports.h"
#include "python/src/guarded.h"
#include "python/src/kv_tensor.h"
#include "python/src/quota.h"
#include "stillmap/allocators/kv/layout.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::python {

// Of a token in one tensor.
struct kv_elements {
  std::uint32_t heads = 1, dim = 0;
  element_type type;
};
// The shape, as Python gives it. Raises InvalidArgumentError where a token has no bytes, or too many.
kv::shape kv_shape_of(const char *operation, std::uint32_t layers, std::uint32_t tensors,
                      const kv_elements &of);

// The pool of an arena whose pages a quota counts; null without a quota. Without the GIL.
result<std::shared_ptr<page_pool>> kv_pool(const device &d, std::shared_ptr<memory_quota> quota);

// What begin_step() returns in Python: 0, or the bytes of device memory that were short. Other errors pass.
result<std::size_t> short_bytes(const status &step);

// Checks a place, and describes `rows` blocks (of one token: tokens) at it.
result<exported_array> describe_kv(const char *class_name, const kv::layout &l,
                                   const kv_elements &of, const kv_place &place, std::size_t rows,
                                   bool blocks);

nb::dict dict_of(const kv::layout &l);

// An arena of either kind.
template <class Arena>
class python_arena : public guarded<std::unique_ptr<Arena>>, public kv_exporter {
 public:
  python_arena(const char *class_name, std::unique_ptr<Arena> arena, int device, std::string tag,
               const kv_elements &of)
      : guarded<std::unique_ptr<Arena>>(class_name, std::move(arena)),
        elements_(of),
        ordinal_(device),
        tag_(std::move(tag)) {}

  // Runs `act` on the arena, as guarded::with does.
  template <class Act>
  auto run(Act act) const {
    return this->with([&](std::unique_ptr<Arena> &a) { return act(*a); });
  }
  // One value of the arena that cannot fail.
  template <class Get>
  auto get(Get of) const {
    return run([&](Arena &a) -> result<decltype(of(a))> { return of(a); });
  }

  std::atomic<int> &count_of_exports() override { return this->exports(); }
  int ordinal() const override { return ordinal_; }
  const std::string &tag() const { return tag_; }
  const kv_elements &elements() const { return elements_; }

 private:
  const kv_elements elements_;
  const int ordinal_;
  const std::string tag_;
};

// What both classes offer under the same names.
template <class Arena, class Class>
void bind_common(nb::class_<Class> &c) {
  c.def_prop_ro(
       "layout",
       [](const Class &self) {
         return dict_of(self.get([](const Arena &a) { return kv::layout(a.layout()); }));
       },
       "Where tensors lie: block_stride, block_bytes, page_bytes, group_bytes, ranges, "
       "layers_per_range.")
      .def_prop_ro(
          "generation",
          [](const Class &self) { return self.get([](const Arena &a) { return a.generation(); }); },
          "Rises whenever pages behind any address change: for those who register memory with a "
          "NIC.")
      .def_prop_ro(
          "address",
          [](const Class &self) {
            return self.get([](const Arena &a) { return a.range().begin.value(); });
          },
          "Of all that is reserved. Constant for life.")
      .def_prop_ro(
          "reserved",
          [](const Class &self) {
            return self.get([](const Arena &a) { return a.range().bytes; });
          },
          "Bytes of address space.")
      .def_prop_ro("dtype", [](const Class &self) { return self.elements().type.name(); })
      .def_prop_ro("tag", &Class::tag)
      .def_prop_ro("device", [](const Class &self) { return self.ordinal(); })
      .def(
          "trim", [](const Class &self) { return self.run([](Arena &a) { return a.trim(); }); },
          "Unmaps all that is free and gives it back to the device. Waits for the device's work. "
          "Returns\n"
          "the bytes that the device got.")
      .def(
          "close", [](Class &self) { self.close(); },
          "Waits for the device and releases the memory and the addresses. Raises BusyError while "
          "a\n"
          "view is exported.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](Class &self, const nb::args &) { self.close(); }, nb::arg("args").none());
}

void bind_kv_arena(nb::module_ &m);
void bind_kv_sequence_arena(nb::module_ &m);

}  // namespace stillmap::python
