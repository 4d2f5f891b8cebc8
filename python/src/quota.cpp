#include "python/src/quota.h"

#include <utility>

#include "python/src/devices.h"
#include "python/src/errors.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::python {
namespace {

// Where an exception of a reclaimer goes: to the Python code that called poll() on this thread. Null: it is
// reported as unraisable, and counted as a background error.
thread_local constinit kept_exception *polling_caller = nullptr;

// For the duration of a poll.
class python_poll {
 public:
  explicit python_poll(kept_exception &to) : before_(std::exchange(polling_caller, &to)) {}
  python_poll(const python_poll &) = delete;
  python_poll &operator=(const python_poll &) = delete;
  ~python_poll() { polling_caller = before_; }

 private:
  kept_exception *before_;
};

// nullopt: Python's current exception says why.
std::optional<std::uint64_t> bytes_in(PyObject *answer) {
  PyObject *const number = answer == nullptr ? nullptr : PyNumber_Index(answer);
  if (number == nullptr) return std::nullopt;
  const std::uint64_t bytes = PyLong_AsUnsignedLongLong(number);
  Py_DECREF(number);
  if (bytes == UINT64_MAX && PyErr_Occurred() != nullptr) return std::nullopt;
  return bytes;
}

void report_exception(nb::handle raised_by) {
  if (polling_caller != nullptr) {
    polling_caller->take(raised_by);
    return;
  }
  PyErr_WriteUnraisable(raised_by.ptr());
  report_background_error(make_python_error(errc::operation_canceled, "SharedQuota.add_reclaimer",
                                            "a reclaimer has raised an exception")
                              .value());
}

[[noreturn]] void raise_forked(const char *operation) {
  raise(make_python_error(errc::not_supported, operation,
                          "the process is a forked child of the participant")
            .value());
}

}  // namespace

// ---- reclaimers ----

std::uint64_t reclaim_callback::operator()(std::uint64_t bytes) {
  if (!interpreter_alive()) return 0;
  const held_gil held;
  // The wrapper may be closed while the callback runs.
  const nb::object callee = function;
  if (!callee.is_valid()) return 0;
  PyObject *const answer =
      PyObject_CallFunction(callee.ptr(), "K", static_cast<unsigned long long>(bytes));
  const std::optional<std::uint64_t> released = bytes_in(answer);
  Py_XDECREF(answer);
  if (!released) report_exception(callee);
  return released.value_or(0);
}

python_reclaimer::python_reclaimer(const std::shared_ptr<embedded_quota> &quota, reclaim_kind kind,
                                   nb::object function)
    : kind_(kind) {
  if (PyCallable_Check(function.ptr()) == 0) throw nb::type_error("the reclaimer is not callable");
  callback_ = std::make_shared<reclaim_callback>(reclaim_callback{std::move(function)});
  registration_ = value_of(without_gil([&]() -> result<std::unique_ptr<reclaimer_registration>> {
    return with_host_memory(
        "shared_quota::add_reclaimer", [&]() -> result<std::unique_ptr<reclaimer_registration>> {
          return quota->add_reclaimer(
              kind_, [callback = callback_](std::uint64_t bytes) { return (*callback)(bytes); });
        });
  }));
}

void python_reclaimer::close() {
  if (callback_) callback_->function.reset();
  std::unique_ptr<reclaimer_registration> last = std::move(registration_);
  if (!last) return;
  // In a forked child a call that ran at the fork never ends. Nor does one that was stopped at the process's end.
  if (born_.in_child() || embedded_quota::is_stuck()) {
    static_cast<void>(last.release());
    return;
  }
  const released_gil released;
  last.reset();
}

// ---- the quota ----

python_quota::python_quota(const std::string &name, shared_quota_options options,
                           std::optional<int> ordinal)
    : name_(name) {
  quota_ = value_of(without_gil([&]() -> result<std::shared_ptr<embedded_quota>> {
    if (ordinal) {
      STILLMAP_ASSIGN_OR_RETURN(options.device, open_device(*ordinal));
    }
    return embedded_quota::open(name, std::move(options));
  }));
}

std::shared_ptr<embedded_quota> python_quota::use(const char *operation) const {
  if (born_.in_child()) raise_forked(operation);
  if (!quota_) raise_invalid(operation, "the quota is closed");
  return quota_;
}

std::uint64_t python_quota::poll() {
  auto quota = use("SharedQuota.poll");
  kept_exception of_reclaimer;
  const auto given = without_gil([&] {
    const python_poll call(of_reclaimer);
    auto released = quota->poll();
    quota.reset();
    return released;
  });
  of_reclaimer.rethrow();
  return value_of(given);
}

void python_quota::close() {
  std::shared_ptr<embedded_quota> last = std::move(quota_);
  quota_ = nullptr;
  if (!last) return;
  // A forked child is no participant, and its threads do not exist.
  if (born_.in_child()) {
    new std::shared_ptr<embedded_quota>(std::move(last));
    return;
  }
  const released_gil released;
  last.reset();
}

// ---- rooms ----

void python_room::enter() {
  if (entered_by_) raise_invalid("SharedQuota.room", "the room is open already");
  check(without_gil([&] { return quota_->make_room(bytes_); }));
  entered_by_ = std::this_thread::get_id();
}

void python_room::exit() {
  if (!entered_by_) return;
  if (*entered_by_ != std::this_thread::get_id()) {
    raise_invalid("SharedQuota.room", "another thread has opened the room");
  }
  entered_by_.reset();
  const released_gil released;
  quota_->end_room();
}

// One that is dropped within ends, if this is its thread.
python_room::~python_room() {
  const released_gil released;
  if (entered_by_ == std::this_thread::get_id()) quota_->end_room();
  quota_.reset();
}

}  // namespace stillmap::python
