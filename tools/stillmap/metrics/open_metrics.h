// A view of the machine in the text format of OpenMetrics 1.0, which Prometheus and others read.
#pragma once

#include <string>

#include "tools/stillmap/machine/machine_view.h"

namespace stillmap::tool {

inline constexpr const char *open_metrics_type =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

// `look_seconds`: how long the look took.
std::string open_metrics_of(const machine_view &view, double look_seconds);
// The same for node_exporter's collector of text files, which reads Prometheus's older format.
std::string text_file_of(const machine_view &view, double look_seconds);

// A value between quotation marks, another one for another text: backslashes and quotation marks are escaped, control
// characters and what is no UTF-8 become "\\x1b".
std::string label_value(const std::string &text);

}  // namespace stillmap::tool
