#include "python/src/errors.h"

#include <string>

#include "python/src/text.h"

namespace stillmap::python {
namespace {

// Borrowed: the module owns the classes, and they live as long as the process.
struct error_classes {
  PyObject *error, *invalid_argument, *out_of_memory, *not_supported, *busy, *device_lost,
      *cancelled, *corrupt;
};
error_classes classes{};

PyObject *make_class(nb::module_ &m, const char *name, const char *doc, PyObject *base,
                     PyObject *builtin = nullptr) {
  const nb::object bases = builtin == nullptr
                               ? nb::object(nb::make_tuple(nb::handle(base)))
                               : nb::object(nb::make_tuple(nb::handle(base), nb::handle(builtin)));
  const std::string qualified = std::string("stillmap.") + name;
  PyObject *const made = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, bases.ptr(), nullptr);
  if (made == nullptr) throw nb::python_error();
  m.attr(name) = nb::handle(made);
  return made;
}

PyObject *class_of(const error &e) {
  if (e.is(errc::invalid_argument)) return classes.invalid_argument;
  if (e.is(errc::not_supported)) return classes.not_supported;
  if (e.is(errc::busy)) return classes.busy;
  if (e.is(errc::device_lost)) return classes.device_lost;
  if (e.is(errc::operation_canceled)) return classes.cancelled;
  if (e.is(errc::corrupt)) return classes.corrupt;
  return classes.error;
}

bool of_the_system(const error &e) {
  return e.code.category() == std::system_category() ||
         e.code.category() == std::generic_category();
}

const char *name_of_unit(error_unit unit) {
  switch (unit) {
    case error_unit::none:
      return "";
    case error_unit::bytes:
      return "bytes";
    case error_unit::pages:
      return "pages";
    case error_unit::address:
      return "address";
    case error_unit::milliseconds:
      return "milliseconds";
    case error_unit::items:
      return "items";
  }
  return "";
}

}  // namespace

void bind_errors(nb::module_ &m) {
  classes.error = make_class(m, "Error",
                             "A failure of Stillmap. The attributes operation, reason, value, "
                             "limit, unit and subject are\n"
                             "those of the C++ error; str() is its message.",
                             PyExc_RuntimeError);
  classes.invalid_argument =
      make_class(m, "InvalidArgumentError", "The call was wrong; retrying cannot help.",
                 classes.error, PyExc_ValueError);
  classes.out_of_memory =
      make_class(m, "OutOfMemoryError", "The device, or the host, has too little memory.",
                 classes.error, PyExc_MemoryError);
  classes.not_supported =
      make_class(m, "NotSupportedError", "This driver, device or memory cannot do it.",
                 classes.error, PyExc_NotImplementedError);
  classes.busy = make_class(m, "BusyError", "Queued work or another owner still needs the memory.",
                            classes.error);
  classes.device_lost =
      make_class(m, "DeviceLostError",
                 "The context is broken: the process has to be started again.", classes.error);
  classes.cancelled =
      make_class(m, "CancelledError", "The operation was cancelled.", classes.error);
  classes.corrupt =
      make_class(m, "CorruptError", "A file or internal state is damaged.", classes.error);
}

nb::object exception_of(const error &e) {
  const std::string message = e.message();
  nb::object made;
  if (e.is(errc::out_of_memory)) {
    made = nb::handle(classes.out_of_memory)(str_of(message));
  } else if (of_the_system(e)) {
    const std::string &subject = e.detail().subject;
    // OSError itself makes FileNotFoundError and the like of the number.
    const nb::handle os_error(PyExc_OSError);
    made = subject.empty() ? os_error(e.code.value(), str_of(message))
                           : os_error(e.code.value(), str_of(message), str_of(subject));
  } else {
    made = nb::handle(class_of(e))(str_of(message));
  }
  made.attr("operation") = str_of(e.operation);
  made.attr("reason") = str_of(e.reason);
  made.attr("value") = e.value;
  made.attr("limit") = e.limit;
  made.attr("unit") = name_of_unit(e.unit);
  made.attr("subject") = str_of(e.detail().subject);
  return made;
}

errc code_of(nb::handle exception) {
  const auto is_a = [&](PyObject *kind) {
    return PyErr_GivenExceptionMatches(exception.ptr(), kind) != 0;
  };
  if (is_a(classes.invalid_argument)) return errc::invalid_argument;
  if (is_a(classes.out_of_memory)) return errc::out_of_memory;
  if (is_a(classes.not_supported)) return errc::not_supported;
  if (is_a(classes.device_lost)) return errc::device_lost;
  if (is_a(classes.corrupt)) return errc::corrupt;
  if (is_a(classes.cancelled) || is_a(PyExc_KeyboardInterrupt)) return errc::operation_canceled;
  return errc::busy;
}

void raise(const error &e) {
  const nb::object made = exception_of(e);
  PyErr_SetObject(made.type().ptr(), made.ptr());
  throw nb::python_error();
}

tl::unexpected<error> make_python_error(errc c, const char *operation, const char *reason,
                                        std::uint64_t value, std::uint64_t limit,
                                        error_unit unit) noexcept {
  const operation_scope scope(operation);
  return make_error(c, reason, value, limit, unit);
}

void raise_invalid(const char *operation, const char *reason) {
  raise(make_python_error(errc::invalid_argument, operation, reason).value());
}

}  // namespace stillmap::python
