// The reason of a thread's last failed call, for C callers that get NULL or nothing. Internal.
#pragma once

#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

// Keeps the error's message for last_error_text().
void remember_error(const error &e) noexcept;
// Remembers it, and prints the first few of the process on stderr: for calls that return nothing.
void report_error(const error &e) noexcept;
// "" if none was remembered on this thread. Valid until the next one is.
const char *last_error_text() noexcept;

}  // namespace stillmap::torch_plugin
