// A heap at one moment, which draws itself.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>

#include "stillmap/allocators/report/heap_picture.h"
#include "stillmap/allocators/report/heap_report.h"

namespace stillmap::python {

namespace nb = nanobind;

// A value: owns no device memory.
class memory_map {
 public:
  // `capacity`: bytes that the heap may commit; 0: unknown.
  memory_map(std::string title, std::string subtitle, heap_snapshot heap, std::size_t capacity)
      : title_(std::move(title)),
        subtitle_(std::move(subtitle)),
        heap_(std::move(heap)),
        capacity_(capacity) {}

  result<std::string> svg() const;
  result<std::string> html() const;
  result<std::string> json() const;
  result<std::string> pickle() const;
  heap_figures figures() const { return figures_of(heap_.map); }
  const std::string &title() const { return title_; }

 private:
  heap_picture picture() const;
  std::string title_, subtitle_;
  heap_snapshot heap_;
  std::size_t capacity_;
};

// The map of an allocator, now. Without the GIL.
result<memory_map> map_of(const caching_allocator &heap, const std::string &tag);

void bind_memory_map(nb::module_ &m);

}  // namespace stillmap::python
