// Memory over a recorded run, which draws itself.
#pragma once

#include <nanobind/nanobind.h>

namespace stillmap::python {

void bind_timeline(nanobind::module_ &m);

}  // namespace stillmap::python
