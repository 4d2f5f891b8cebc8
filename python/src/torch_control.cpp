// Control servers for PyTorch's memory: one for a device, from its first heap on.
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "python/src/control.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "python/src/served_device.h"
#include "stillmap/allocators/torch/internal/torch_heaps.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::python {
namespace {

// How long a request waits for the end of an optimizer's step.
constexpr std::chrono::minutes most_of_a_step{1};

// Set before the observer, and never destroyed: heaps are made while the process ends.
std::atomic<const std::string *> address_of_torch{nullptr};

// "/run/me/train.control" of device 0, "/run/me/train.1.control" of device 1.
std::string address_for(const std::string &address, int ordinal) {
  constexpr std::string_view end = ".control";
  if (ordinal == 0 || address.empty() || address.ends_with('/')) return address;
  const std::string number = "." + std::to_string(ordinal);
  if (!address.ends_with(end)) return address + number;
  return address.substr(0, address.size() - end.size()) + number + std::string(end);
}

// On the main thread, with the GIL.
int warn_of_failure(void *text) {
  const std::unique_ptr<const std::string> message(static_cast<const std::string *>(text));
  if (PyErr_WarnEx(PyExc_RuntimeWarning, message->c_str(), 1) != 0) PyErr_WriteUnraisable(nullptr);
  return 0;
}

// The request of memory that is the first on the device goes on without a server. It may hold locks of PyTorch's, so
// it must not wait for the GIL.
void report_failure(const error &why) noexcept {
  report_background_error(why);
  (void)with_host_memory([&]() -> status {
    auto text =
        std::make_unique<const std::string>("the program has no control server: " + why.message());
    if (Py_AddPendingCall(&warn_of_failure, const_cast<std::string *>(text.get())) == 0) {
      (void)text.release();
    }
    return {};
  });
}

void serve_heap(int ordinal) noexcept {
  const std::string *const address = address_of_torch.load(std::memory_order_acquire);
  const status served = with_host_memory([&]() -> status {
    if (address == nullptr || served_device::known(ordinal) != nullptr) return {};
    serve_options options;
    options.address = address_for(*address, ordinal);
    options.timeout = most_of_a_step;
    const auto made = served_device::create(ordinal, std::move(options));
    if (made || served_device::known(ordinal) != nullptr) return {};  // another thread was faster
    return tl::unexpected(made.error());
  });
  if (!served) report_failure(served.error());
}

void start_with_heaps(nb::handle address) {
  auto given =
      std::make_unique<const std::string>(address.is_none() ? std::string() : path_of(address));
  const std::string *none = nullptr;
  if (address_of_torch.compare_exchange_strong(none, given.get())) {
    (void)given.release();
    torch_plugin::observe_new_heaps(&serve_heap);
  } else if (*none != *given) {
    raise(make_python_error(errc::busy, "stillmap.torch.use",
                            "the program has a control server at another address")
              .value()
              .about(none->empty() ? "@stillmap-PID.control" : *none));
  }
}

}  // namespace

void bind_torch_control(nb::module_ &m) {
  m.def("_torch_serve", &start_with_heaps, nb::arg("address").none(),
        "Each device gets a control server with its next heap. None: the default address. Raises "
        "BusyError: it was\n"
        "called with another address.");
}

}  // namespace stillmap::python
