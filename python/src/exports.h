// Memory that other libraries see: __cuda_array_interface__, DLPack, and NumPy on hostcuda.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <optional>
#include <vector>

#include "python/src/dtype.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/stream.h"

namespace stillmap::python {

// An array of device memory: of one dimension and contiguous, unless it has a shape.
struct exported_array {
  std::uint64_t address = 0;
  std::size_t elements = 0;
  element_type type;
  int device = 0;
  std::optional<stream_ref> stream;              // that has work on it queued; none: no stream
  bool read_only = false;                        // for the device
  std::vector<std::int64_t> shape{}, strides{};  // in elements; both, or none

  // From the first element to behind the last one.
  std::size_t span_bytes() const;
};

// Keeps the owner of exported memory alive, and counts in it. Threads: with the GIL.
class export_hold {
 public:
  // `count` belongs to the object `owner`, and has been raised by one.
  export_hold(nb::object owner, std::atomic<int> &count)
      : owner_(std::move(owner)), count_(count) {}
  ~export_hold() { count_.fetch_sub(1, std::memory_order_release); }
  export_hold(const export_hold &) = delete;
  export_hold &operator=(const export_hold &) = delete;

 private:
  nb::object owner_;
  std::atomic<int> &count_;
};

// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3
nb::dict cuda_array_interface_of(const exported_array &array);

// A capsule by https://dmlc.github.io/dlpack: versioned where `max_version` is (1, 0) or later.
// `hold` lives until the consumer's deleter is called, on any thread. Raises BufferError for another
// device than the array's, where a copy is asked for, and where the array is read-only and the
// consumer takes capsules without versions, which cannot say so.
nb::object dlpack_of(const exported_array &array, nb::object hold, nb::handle max_version,
                     nb::handle dl_device, nb::handle copy);
nb::tuple dlpack_device_of(int device);

// The stream of a consumer of DLPack: None is the legacy default stream, 1 and 2 as in CUDA; nothing
// for -1, which asks for no order. Raises ValueError for 0, which is ambiguous.
std::optional<stream_ref> dlpack_stream_of(nb::handle stream);

// A NumPy array of the same bytes, after all work of the device. Raises NotSupportedError where the
// host cannot read the memory: on a GPU, and on hostcuda without memory behind its pages.
nb::object numpy_view_of(const exported_array &array, nb::object hold, const device &d);

void bind_exports(nb::module_ &m);

}  // namespace stillmap::python
