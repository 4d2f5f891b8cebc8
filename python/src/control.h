// The control server of a program: the functions serve, safe_point and safe_region, and their classes.
#pragma once

#include <nanobind/nanobind.h>

#include "stillmap/checkpoint/control/server_options.h"

namespace stillmap::python {

namespace nb = nanobind;

// The callbacks of a server as functions of Python; None: there is none. They take the GIL, and drop the functions
// with it. Raises TypeError for what cannot be called.
control::server_callbacks callbacks_of(nb::handle quiesce, nb::handle resume, nb::handle released,
                                       nb::handle throttle);

void bind_control(nb::module_ &m);        // control.cpp
void bind_torch_control(nb::module_ &m);  // torch_control.cpp

}  // namespace stillmap::python
