// A device vector whose element type is known at run time: the class DeviceVector.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>

#include "python/src/exports.h"
#include "python/src/guarded.h"
#include "stillmap/vmm/byte_vector.h"

namespace stillmap::python {

// Positions and counts are elements.
class python_vector : public guarded<detail::byte_vector> {
 public:
  python_vector(stillmap::device d, detail::byte_vector bytes, element_type type, std::string tag)
      : guarded("DeviceVector", std::move(bytes)),
        device_(std::move(d)),
        type_(type),
        tag_(std::move(tag)) {}

  std::size_t size() const;
  // Appends, inserts or overwrites whole elements from host memory. `relocate`, here and below: the
  // address may change; otherwise what would change it raises InvalidArgumentError.
  void append(const void *from, std::size_t bytes, bool relocate);
  void insert(std::size_t at, const void *from, std::size_t bytes, bool relocate);
  void write(std::size_t at, const void *from, std::size_t bytes);
  // Appends elements of device memory, after the work of `after`; waits for the copy.
  void append_from_device(device_address from, std::size_t elements, stream_ref after,
                          bool relocate);
  nb::bytes read(std::size_t at, std::size_t elements) const;
  // Raises BusyError if that would move memory of a view, or take elements from one.
  void resize(std::size_t elements, bool zero, bool relocate);
  void erase(std::size_t at, std::size_t elements);
  void reserve(std::size_t elements, bool relocate);
  void shrink_to_fit(bool relocate);

  // The elements, all on their way to the device, and one more export where asked for. Work queued
  // on `consumer` from now on comes after that of the vector's stream.
  exported_array describe(bool count, std::optional<stream_ref> consumer);

  const stillmap::device &device() const { return device_; }
  const element_type &type() const { return type_; }
  const std::string &tag() const { return tag_; }

 private:
  std::size_t bytes_of(std::size_t elements) const;
  status refuse_growth(const char *op, const detail::byte_vector &b, std::size_t bytes,
                       bool relocate) const;

  const stillmap::device device_;
  const element_type type_;
  const std::string tag_;
};

void bind_vector(nb::module_ &m);

}  // namespace stillmap::python
