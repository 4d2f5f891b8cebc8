// Recorded traces, replayed on an allocator.
#pragma once

#include <nanobind/nanobind.h>

namespace stillmap::python {

namespace nb = nanobind;

void bind_replay(nb::module_ &m);

}  // namespace stillmap::python
