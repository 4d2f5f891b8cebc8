#include "python/src/timeline.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "bench/replay/timeline.h"
#include "bench/replay/trace_file.h"
#include "python/src/devices.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {

namespace nb = nanobind;

namespace {

timeline_picture timeline_of_file(nb::handle path, const std::vector<std::string> &allocators,
                                  std::optional<std::uint64_t> capacity,
                                  std::optional<unsigned> iterations, std::size_t points,
                                  int ordinal) {
  const std::string file = path_of(path);
  return value_of(without_gil([&]() -> result<timeline_picture> {
    replay::timeline_options options;
    options.capacity = capacity;
    options.points = points;
    for (const std::string &name : allocators) {
      STILLMAP_ASSIGN_OR_RETURN(options.kinds.emplace_back(), replay::find_target(name));
    }
    STILLMAP_ASSIGN_OR_RETURN(const trace recorded, replay::load_trace(file));
    STILLMAP_ASSIGN_OR_RETURN(const replay::replay_plan plan,
                              replay::plan_replay(recorded, iterations));
    STILLMAP_ASSIGN_OR_RETURN(const device d, open_device(ordinal));
    return replay::timeline_of(d, plan, options, file.substr(file.find_last_of('/') + 1));
  }));
}

nb::dict curves_of(const timeline_picture &p) {
  nb::dict curves;
  for (const timeline_curve &c : p.curves) {
    nb::list points;
    for (const timeline_point &at : c.points) {
      points.append(nb::make_tuple(at.requests, at.live, at.committed));
    }
    curves[c.title.c_str()] = points;
  }
  return curves;
}

nb::str svg_of(const timeline_picture &p) {
  return string_of(without_gil([&] { return to_svg(p); }));
}

}  // namespace

void bind_timeline(nb::module_ &m) {
  nb::class_<timeline_picture>(
      m, "Timeline", nb::is_final(),
      "Memory over a recorded run, on several allocators. A value: it owns no device memory.\n"
      "A notebook draws it.")
      .def("to_svg", &svg_of, "An SVG document, for light and dark pages.")
      .def("_repr_svg_", &svg_of)
      .def(
          "save",
          [](const timeline_picture &p, nb::handle path) {
            const std::string file = path_of(path);
            check(without_gil([&]() -> status {
              if (!file.ends_with(".svg")) {
                return tl::unexpected<error>(error{make_error_code(errc::invalid_argument),
                                                   "Timeline.save",
                                                   "the name does not end with .svg"}
                                                 .about(file));
              }
              STILLMAP_ASSIGN_OR_RETURN(const std::string contents, to_svg(p));
              return write_file("Timeline.save", file, contents);
            }));
          },
          nb::arg("path"),
          "Writes the picture to a file, .svg. Raises InvalidArgumentError for another suffix, "
          "OSError.")
      .def(
          "curves", &curves_of,
          "By allocator, tuples of an interval: requests served by its end, and the most bytes in\n"
          "it that the program had allocated and that the allocator held of the device.")
      .def("__repr__", [](const timeline_picture &p) {
        return "<stillmap.Timeline of " + p.title + ": " + std::to_string(p.curves.size()) +
               " allocators>";
      });
  m.def("_timeline", &timeline_of_file, nb::arg("path"), nb::arg("allocators"),
        nb::arg("capacity").none(), nb::arg("iterations").none(), nb::arg("points"),
        nb::arg("device"));
}

}  // namespace stillmap::python
