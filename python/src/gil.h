// Python's global interpreter lock (GIL) around calls that may wait, and exceptions that cross C++.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "python/src/fork_guard.h"

namespace stillmap::python {

namespace nb = nanobind;

// Raises NotSupportedError in such a child, where also a lock stays locked that another thread of the
// parent held at the fork.
void refuse_after_fork();

// Gives the GIL up for its lifetime. A thread that wants it back while the interpreter ends stops
// here for good, as since Python 3.14: older ones end such a thread by unwinding its stack, which no
// destructor on the way survives.
class released_gil {
 public:
  released_gil() : state_(PyEval_SaveThread()) {}
  released_gil(const released_gil &) = delete;
  released_gil &operator=(const released_gil &) = delete;
  ~released_gil() noexcept(false);

 private:
  PyThreadState *state_;
};

// Whether this thread has the GIL: C code that Python called may have kept it.
bool has_gil() noexcept;

// Takes the GIL for its lifetime, on any thread, whether or not it has it. Stops at the end of the
// interpreter as above.
class held_gil {
 public:
  held_gil();
  held_gil(const held_gil &) = delete;
  held_gil &operator=(const held_gil &) = delete;
  ~held_gil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Whether Python's objects can still be used.
bool interpreter_alive() noexcept;

// Runs `f`, which may wait or call a driver, without the GIL. `f` uses no object of Python.
template <class F>
auto without_gil(F &&f) {
  refuse_after_fork();
  const released_gil released;
  return std::forward<F>(f)();
}

// The first exception of a callback, on its way to the Python code that made the call.
// Threads: all members but the constructor with the GIL.
class kept_exception {
 public:
  kept_exception() = default;
  kept_exception(const kept_exception &) = delete;
  kept_exception &operator=(const kept_exception &) = delete;
  ~kept_exception() { Py_CLEAR(value_); }

  // Takes Python's current exception. Only the first is kept; later ones are reported as unraisable.
  void take(nb::handle raised_by);
  explicit operator bool() const { return value_ != nullptr; }
  // Throws it, if there is one. `context`, if not null, becomes its __context__.
  void rethrow(nb::handle context = {});

 private:
  PyObject *value_ = nullptr;
};

}  // namespace stillmap::python
