#include "python/src/progress.h"

namespace stillmap::python {

progress_call::progress_call(nb::object function) : function_(std::move(function)) {
  if (!function_.is_none() && PyCallable_Check(function_.ptr()) == 0) {
    throw nb::type_error("progress is not callable");
  }
}

void progress_call::operator()(std::uint64_t done, std::uint64_t total) {
  if (stop_.stop_requested() || !interpreter_alive()) return;
  const held_gil held;
  PyObject *const answer =
      PyObject_CallFunction(function_.ptr(), "KK", static_cast<unsigned long long>(done),
                            static_cast<unsigned long long>(total));
  if (answer == nullptr) {
    kept_.take(function_);
    stop_.request_stop();
  }
  Py_XDECREF(answer);
}

void progress_call::check_signals() {
  if (PyErr_CheckSignals() == 0) return;
  kept_.take(function_);
  stop_.request_stop();
}

}  // namespace stillmap::python
