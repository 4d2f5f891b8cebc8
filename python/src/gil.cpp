#include "python/src/gil.h"

#include <dlfcn.h>
#include <unistd.h>

#include "python/src/errors.h"

namespace stillmap::python {
namespace {

// On the stack of a thread that may be ended by unwinding: stops it where it is.
class stop_here {
 public:
  ~stop_here() {
    while (armed_) pause();
  }
  void disarm() { armed_ = false; }

 private:
  bool armed_ = true;
};

}  // namespace

released_gil::~released_gil() noexcept(false) {
  stop_here guard;
  PyEval_RestoreThread(state_);
  guard.disarm();
}

held_gil::held_gil() {
  stop_here guard;
  state_ = PyGILState_Ensure();
  guard.disarm();
}

bool has_gil() noexcept {
  // Not of the stable ABI, but of every Python. Where the interpreter has ended it says yes.
  static auto *const check = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check != nullptr && PyGILState_GetThisThreadState() != nullptr && check() != 0;
}

bool interpreter_alive() noexcept {
  // While it ends, the thread that ends it destroys the last objects.
  return Py_IsInitialized() != 0 || PyGILState_GetThisThreadState() != nullptr;
}

void refuse_after_fork() {
  if (!forked_after_use()) return;
  raise(
      error{make_error_code(errc::not_supported), "stillmap",
            "the process was forked after it had used CUDA, which does not work in a child: start "
            "it with multiprocessing's method 'spawn', or fork before the first call"});
}

void kept_exception::take(nb::handle raised_by) {
  if (value_ != nullptr) {
    PyErr_WriteUnraisable(raised_by.ptr());
    return;
  }
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  value_ = value;
}

void kept_exception::rethrow(nb::handle context) {
  if (value_ == nullptr) return;
  PyObject *const value = std::exchange(value_, nullptr);
  if (context.is_valid()) {
    Py_INCREF(context.ptr());
    PyException_SetContext(value, context.ptr());
  }
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(value)), value);
  Py_DECREF(value);
  throw nb::python_error();
}

}  // namespace stillmap::python
