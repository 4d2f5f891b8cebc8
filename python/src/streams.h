// Streams of other libraries, as Stillmap takes them.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "stillmap/vmm/stream.h"

namespace stillmap::python {

namespace nb = nanobind;

// The stream of None (the legacy default stream), of an integer, or of an object of another library:
// __cuda_stream__ (cuda.core, CuPy), .cuda_stream (PyTorch, Warp), .handle (Numba), .ptr (CuPy).
// Throws TypeError for anything else.
stream_ref stream_of(nb::handle given);

// The same; nothing for an Ellipsis, which is the default of arguments that may be left out.
std::optional<stream_ref> optional_stream_of(nb::handle given);

// The stream's number, as other libraries take it.
std::uint64_t number_of(stream_ref s);

void bind_streams(nb::module_ &m);

}  // namespace stillmap::python
