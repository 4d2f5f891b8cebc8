// Suspend and resume by tag; snapshots and their restoration.
#pragma once

#include <nanobind/nanobind.h>

namespace stillmap::python {

namespace nb = nanobind;

void bind_suspend(nb::module_ &m);   // suspend.cpp
void bind_snapshot(nb::module_ &m);  // snapshot.cpp

}  // namespace stillmap::python
