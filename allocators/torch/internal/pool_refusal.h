// Why a tag's heap refused a request of PyTorch's: PyTorch answers NULL with an exception of its own, whose
// text does not say. Internal.
#pragma once

#include <string>

#include "stillmap/vmm/base/error.h"

namespace stillmap::torch_plugin {

// Keeps the reason until it is taken, or this thread's next request is served: then PyTorch's retry
// succeeded. One is kept, the latest of the process, because PyTorch may raise its exception on another
// thread than the one that asked.
void note_refusal(const std::string &tag, int ordinal, const error &e) noexcept;
void note_served() noexcept;

// "": there is none. Errors: std::bad_alloc.
std::string take_refusal();

}  // namespace stillmap::torch_plugin
