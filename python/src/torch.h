// What stillmap.torch needs of the plug-in for PyTorch beyond its C functions.
#pragma once

#include <nanobind/nanobind.h>

namespace stillmap::python {

void bind_torch(nanobind::module_ &m);

}  // namespace stillmap::python
