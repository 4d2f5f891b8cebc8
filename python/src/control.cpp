#include "python/src/control.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>

#include "python/src/errors.h"
#include "python/src/gil.h"
#include "python/src/paths.h"
#include "python/src/safe_points.h"
#include "python/src/seconds.h"
#include "python/src/served_device.h"
#include "python/src/text.h"

namespace stillmap::python {
namespace {

using namespace std::chrono_literals;

// A handle of a server, which stays open without it.
class python_server {
 public:
  explicit python_server(std::shared_ptr<served_device> of) : of_(std::move(of)) {}
  served_device &of() const { return *of_; }
  void close() const {
    const status closed = [&] {
      const released_gil released;
      return of_->close();
    }();
    check(closed);
  }

 private:
  const std::shared_ptr<served_device> of_;
};

python_server *serve(nb::handle address, int device, nb::handle quiesce, nb::handle resume,
                     nb::handle released, nb::handle throttle, double timeout) {
  serve_options options;
  if (!address.is_none()) {
    options.address = path_of(address);
    if (options.address.empty()) raise_invalid("stillmap.serve", "the address is empty");
  }
  options.program = callbacks_of(quiesce, resume, released, throttle);
  options.timeout = milliseconds_of("stillmap.serve", timeout);
  return new python_server(
      value_of(without_gil([&] { return served_device::create(device, std::move(options)); })));
}

// ---- safe points ----

// Requests that read or move memory now would read what the program changes: they are cancelled, or end.
void wait_until_unused() {
  for (const auto &server : served_device::all()) {
    for (;;) {
      const control::job_status job = server->job();
      if (job.request == control::request_kind::none || job.in_doubt) break;
      server->abort();
      std::this_thread::sleep_for(5ms);
    }
  }
}

// The thread that ends the interpreter, from its last functions on.
std::atomic<std::thread::id> &ending_thread() {
  static std::atomic<std::thread::id> id{};
  return id;
}

// A daemon thread that waits stops for good where it is, as all do soon after.
void stop_if_interpreter_ends() {
  const std::thread::id by = ending_thread().load();
  if (by == std::thread::id() || by == std::this_thread::get_id()) return;
  const released_gil released;
  for (;;) std::this_thread::sleep_for(1h);
}

[[noreturn]] void raise_closed(const char *operation) {
  stop_if_interpreter_ends();
  std::string tags;
  for (const safe_points::hold &h : safe_points::all().holds()) {
    tags += (tags.empty() ? "" : ", ") + h.tag + " of device " + std::to_string(h.device);
  }
  raise(make_python_error(errc::busy, operation,
                          "the control server was closed while memory is suspended: bring it back "
                          "with stillmap.resume() before you use it")
            .value()
            .about(tags));
}

// Until no request has memory. An exception of a signal handler ends it, once no request uses the memory: what is
// suspended is away then.
void wait_here(const char *operation) {
  constexpr auto between_signals = 50ms;
  safe_points &points = safe_points::all();
  for (;;) {
    const auto seen = [&] {
      const released_gil released;
      return points.leave(between_signals);
    }();
    if (seen == safe_points::outcome::open) return;
    if (seen == safe_points::outcome::closed) raise_closed(operation);
    if (PyErr_CheckSignals() == 0) continue;
    kept_exception raised;
    raised.take({});
    {
      const released_gil released;
      points.begin_interrupt();
      wait_until_unused();
      points.end_interrupt();
    }
    raised.rethrow();
  }
}

void safe_point() {
  safe_points &points = safe_points::all();
  // A callback is the server's thread: it would wait for itself.
  if (in_control_callback() || !points.requested()) return;
  points.arrive();
  wait_here("stillmap.safe_point");
}

// Nothing of what a thread does inside uses the memory. Threads: with the GIL.
class safe_region {
 public:
  void enter() {
    constexpr const char *op = "stillmap.safe_region";
    if (in_control_callback()) raise_invalid(op, "a callback of a control server is the caller");
    if (entered_by_) raise_invalid(op, "the region is open already: call safe_region() again");
    entered_by_ = std::this_thread::get_id();
    safe_points::all().arrive();
  }
  void exit() {
    constexpr const char *op = "stillmap.safe_region";
    if (entered_by_ != std::this_thread::get_id()) {
      raise_invalid(op, "this thread has not entered the region");
    }
    entered_by_.reset();
    wait_here(op);
  }

 private:
  std::optional<std::thread::id> entered_by_;
};

nb::list requests() {
  nb::list out;
  for (const safe_points::hold &h : safe_points::all().holds()) {
    const auto server = served_device::known(h.device);
    const auto kind = server ? server->job().request : control::request_kind::none;
    out.append(nb::make_tuple(control::name_of(kind), h.device, str_of(h.tag)));
  }
  return out;
}

void refuse_requests(const std::string &reason) {
  safe_points::all().refuse(make_python_error(errc::not_supported, "stillmap.safe_point",
                                              "the program cannot be stopped here")
                                .value()
                                .with({.cause = reason}));
}

void bind_safe_points(nb::module_ &m) {
  // Before any thread uses it.
  static_cast<void>(safe_points::all());
  m.def("safe_point", &safe_point,
        "Lets a request of a control server (serve) have the memory here: for a loop to call "
        "between two steps.\n"
        "Returns at once where there is none, in some 50 ns. Otherwise waits, without the GIL, "
        "until the request\n"
        "is over, and as long as a tag stays suspended. A request waits for every thread that has "
        "called this\n"
        "before and has not ended. Work on the memory may be queued: the server waits for the "
        "device.\n"
        "Raises what a signal handler raises (KeyboardInterrupt), once no request uses the memory: "
        "a snapshot is\n"
        "cancelled then, and what is suspended is still away. Raises BusyError: the server was "
        "closed while a tag\n"
        "is suspended. In a forked child it does nothing.");
  nb::class_<safe_region>(m, "SafeRegion", nb::is_final(), "What safe_region() returns.")
      .def("__enter__",
           [](nb::handle self) {
             nb::cast<safe_region &>(self).enter();
             return self;
           })
      .def(
          "__exit__", [](safe_region &self, const nb::args &) { self.exit(); },
          nb::arg("args").none());
  m.def(
      "safe_region", [] { return safe_region(); },
      "A context, inside of which this thread uses no memory that a control server may suspend, "
      "save or move,\n"
      "and queues no work on it: around what may wait for long, such as a queue. At its end, as "
      "safe_point().");
  m.def(
      "_safe_point_requested",
      [] { return !in_control_callback() && safe_points::all().requested(); },
      "Whether safe_point() would wait; adds the thread to those that requests wait for.");
  m.def("_safe_point_requests", &requests,
        "(kind of request, device, tag) of what waits, or is away.");
  m.def("_refuse_at_safe_point", &refuse_requests, nb::arg("reason"),
        "Refuses the requests that wait for safe points.");
}

}  // namespace

void bind_control(nb::module_ &m) {
  nb::class_<python_server>(
      m, "Server", nb::is_final(), nb::is_weak_referenceable(),
      "What serve() returns. The server runs until close(), or the end of the process.")
      .def_prop_ro("address", [](const python_server &self) { return str_of(self.of().address()); })
      .def_prop_ro("device", [](const python_server &self) { return self.of().ordinal(); })
      .def_prop_ro("closed", [](const python_server &self) { return self.of().closed(); })
      .def("close", &python_server::close,
           "Ends the server. Cancels a snapshot, and waits for every other request. What is "
           "suspended stays so,\n"
           "until resume(tag). Raises BusyError in a callback of a server.")
      .def("__enter__", [](nb::handle self) { return self; })
      .def(
          "__exit__", [](const python_server &self, const nb::args &) { self.close(); },
          nb::arg("args").none())
      .def("__repr__", [](const python_server &self) {
        return str_of("<stillmap.Server '" + self.of().address() +
                      (self.of().closed() ? "', closed>" : "'>"));
      });
  m.def("serve", &serve, nb::rv_policy::take_ownership, nb::arg("address").none() = nb::none(),
        nb::kw_only(), nb::arg("device") = 0, nb::arg("quiesce").none() = nb::none(),
        nb::arg("resume").none() = nb::none(), nb::arg("released").none() = nb::none(),
        nb::arg("throttle").none() = nb::none(), nb::arg("timeout") = 10.0,
        "Starts the control server of a device: `stillmap task "
        "list|status|suspend|resume|snapshot` reach this\n"
        "program, for processes of the same user and of root. docs/control.md\n"
        "address: a path, an abstract name after '@', or a folder; None: @stillmap-PID.control, of "
        "device n\n"
        "@stillmap-PID.n.control, which `stillmap task list` finds (of a folder: "
        "stillmap-PID.control in it).\n"
        "Requests wait until the program's threads are at a safe_point() or in a safe_region(), "
        "`timeout` seconds\n"
        "at most; then they are refused, and the program goes on. With quiesce, they call that "
        "instead.\n"
        "The functions run one at a time, on a thread of the server:\n"
        "quiesce(tags, stopped): returns when nothing uses the memory of the tags any more; queued "
        "work may.\n"
        "  An exception, or False, refuses the request. stopped() says that it need not wait any "
        "longer.\n"
        "resume(tags): the memory is there again. released(tags): it belongs to another process "
        "(handoff,\n"
        "  migrate, which are refused without this function). throttle(tags, fraction): write that "
        "much less.\n"
        "  What these raise goes to sys.unraisablehook.\n"
        "Raises BusyError (the device has a server; the address is in use), InvalidArgumentError, "
        "OSError.");
  bind_safe_points(m);
  // A request that waits for the GIL, or for a loop, would never end once the interpreter has.
  constexpr std::chrono::seconds most{5};
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([most] {
    ending_thread() = std::this_thread::get_id();
    const released_gil released;
    served_device::close_all(most);
  }));
}

}  // namespace stillmap::python
