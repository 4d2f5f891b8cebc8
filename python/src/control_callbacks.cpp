#include <memory>
#include <new>
#include <string>

#include "python/src/control.h"
#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/text.h"
#include "stillmap/vmm/base/host_memory.h"

namespace stillmap::python {
namespace {

using tags_view = control::server_callbacks::tags_view;

// A function of Python that any thread may call, and drop.
class shared_function {
 public:
  explicit shared_function(nb::handle f)
      : function_(new nb::object(nb::borrow(f)), [](nb::object *last) {
          if (!interpreter_alive()) return;
          const held_gil held;
          delete last;
        }) {}
  nb::handle get() const { return *function_; }

 private:
  std::shared_ptr<nb::object> function_;
};

nb::tuple names_of(tags_view tags) {
  nb::list names;
  for (const std::string &tag : tags) names.append(str_of(tag));
  return nb::tuple(names);
}

// "ValueError: its text". Takes Python's current exception.
error refusal_of_current_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  const nb::object kind = nb::steal(type), exception = nb::steal(value), where = nb::steal(trace);
  std::string text = nb::cast<std::string>(nb::str(kind.attr("__name__")));
  const std::string said = bytes_of(nb::str(exception));
  if (!said.empty()) text += ": " + said;
  return make_error(
             code_of(exception),
             "the program's function `quiesce` raised an exception, so the request is refused")
      .value()
      .with({.cause = std::move(text)});
}

status ask_to_stop(nb::handle function, tags_view tags, const std::stop_token &stop) {
  try {
    const nb::object stopped = nb::cpp_function([stop] { return stop.stop_requested(); });
    const nb::object answer = function(names_of(tags), stopped);
    if (!answer.is(nb::handle(Py_False))) return {};
    return make_error(errc::busy,
                      "the program's function `quiesce` returned False, so the request is refused");
  } catch (nb::python_error &e) {
    e.restore();
  }
  try {
    return tl::unexpected(refusal_of_current_exception());
  } catch (const std::exception &) {  // its text is none
    PyErr_Clear();
    return make_error(
        errc::busy,
        "the program's function `quiesce` raised an exception, so the request is refused");
  }
}

// Calls what has nobody to tell of an exception.
template <class... Arguments>
void notify(const shared_function &function, tags_view tags, Arguments... arguments) {
  if (!interpreter_alive()) return;
  const held_gil held;
  try {
    function.get()(names_of(tags), arguments...);
  } catch (nb::python_error &e) {
    e.restore();
    PyErr_WriteUnraisable(function.get().ptr());
  } catch (const std::bad_alloc &) {
    report_background_error(host_out_of_memory().value());
  }
}

void check_callable(nb::handle function, const char *reason) {
  if (!function.is_none() && PyCallable_Check(function.ptr()) == 0) throw nb::type_error(reason);
}

}  // namespace

control::server_callbacks callbacks_of(nb::handle quiesce, nb::handle resume, nb::handle released,
                                       nb::handle throttle) {
  check_callable(quiesce, "quiesce is not callable");
  check_callable(resume, "resume is not callable");
  check_callable(released, "released is not callable");
  check_callable(throttle, "throttle is not callable");
  control::server_callbacks out;
  if (!quiesce.is_none()) {
    out.quiesce = [f = shared_function(quiesce)](tags_view tags,
                                                 const std::stop_token &stop) -> status {
      if (!interpreter_alive()) {
        return make_error(errc::operation_canceled, "the interpreter of the program has ended");
      }
      const held_gil held;
      return with_host_memory([&] { return ask_to_stop(f.get(), tags, stop); });
    };
  }
  if (!resume.is_none()) {
    out.resume = [f = shared_function(resume)](tags_view tags) { notify(f, tags); };
  }
  if (!released.is_none()) {
    out.released = [f = shared_function(released)](tags_view tags) { notify(f, tags); };
  }
  if (!throttle.is_none()) {
    out.throttle = [f = shared_function(throttle)](tags_view tags, double fraction) {
      notify(f, tags, fraction);
    };
  }
  return out;
}

}  // namespace stillmap::python
