// What Python says of an image that is to be written, and hears of one that is.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "stillmap/checkpoint/image/writer.h"

namespace stillmap::python {

namespace nb = nanobind;

struct image_request {
  image::write_options options;
  std::string parent;  // its path; empty: none
};

// `operation` names the Python function. Raises InvalidArgumentError (no such compression), TypeError.
image_request image_request_of(const char *operation, nb::handle parent, nb::handle compression,
                               bool replace, bool force);

// The options with the parent, which is opened. Without the GIL.
result<image::write_options> open_parent(image_request request);

nb::dict image_dict(const image::written &w);

}  // namespace stillmap::python
