#include "stillmap/vmm/base/error.h"

#include <atomic>
#include <cstdio>
#include <new>

#include "stillmap/vmm/base/cuda_errors.h"
#include "stillmap/vmm/base/format.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap {
namespace {

// "96 GiB = 103079215104 B": rounded for reading, and exact.
std::string bytes_text(std::uint64_t n) {
  const std::string exact = std::to_string(n) + " B";
  return n < 1024 ? exact : format_bytes(n) + " = " + exact;
}

std::string amount(std::uint64_t n, error_unit unit) {
  char text[32];
  switch (unit) {
    case error_unit::bytes:
      return bytes_text(n);
    case error_unit::address:
      std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(n));
      return text;
    case error_unit::pages:
      return std::to_string(n) + (n == 1 ? " page" : " pages");
    case error_unit::milliseconds:
      return std::to_string(n) + " ms";
    case error_unit::none:
    case error_unit::items:
      break;
  }
  return std::to_string(n);
}

struct sink_state {
  stillmap::mutex mutex;
  error_sink sink STILLMAP_GUARDED_BY(mutex) = nullptr;
  void *user STILLMAP_GUARDED_BY(mutex) = nullptr;
};

// Destructors of statics report errors too.
sink_state &sink() {
  static undying<sink_state> state;
  return *state;
}

std::atomic<std::uint64_t> background_errors{0};

}  // namespace

tl::unexpected<error> make_error(errc c, const char *reason, std::uint64_t value,
                                 std::uint64_t limit, error_unit unit) noexcept {
  return tl::unexpected<error>(
      error{make_error_code(c), operation_scope::current(), reason, value, limit, unit, {}});
}

tl::unexpected<error> make_system_error(int code, const char *reason,
                                        std::string subject) noexcept {
  const error e{std::error_code(code, std::system_category()), operation_scope::current(), reason};
  return tl::unexpected<error>(subject.empty() ? e : e.about(std::move(subject)));
}

const error_detail &error::detail() const noexcept {
  static undying<error_detail> none;  // destructors of statics report errors too
  return more != nullptr ? *more : *none;
}

error error::with(error_detail d) const noexcept {
  error out = *this;
  try {
    error_detail all = detail();
    const auto take = [](std::string &into, std::string &from) {
      if (!from.empty()) into = std::move(from);
    };
    take(all.subject, d.subject);
    take(all.where, d.where);
    take(all.found, d.found);
    take(all.expected, d.expected);
    take(all.cause, d.cause);
    out.more = std::make_shared<const error_detail>(std::move(all));
  } catch (const std::bad_alloc &) {
    // The error itself matters more than its detail.
  }
  return out;
}

error error::about(std::string subject) const noexcept {
  return detail().subject.empty() ? with({.subject = std::move(subject)}) : *this;
}

std::string error::message() const {
  const error_detail &d = detail();
  std::string text;
  const auto part = [&text](const std::string &s) {
    if (!s.empty()) text += (text.empty() ? "" : ": ") + s;
  };
  part(d.subject);
  part(d.where);
  part(operation);
  part(reason);
  std::string numbers;
  const auto number = [&numbers](const char *what, const std::string &s) {
    if (!s.empty()) numbers += (numbers.empty() ? "" : ", ") + std::string(what) + s;
  };
  number("found ", d.found);
  number("expected ", d.expected);
  if (value != 0 || limit != 0) {
    number(unit == error_unit::address ? "at " : "requested ", amount(value, unit));
  }
  if (limit != 0) number("limit ", amount(limit, unit));
  if (!numbers.empty()) text += " (" + numbers + ")";
  part(code.message());
  part(d.cause);
  return text;
}

void set_error_sink(error_sink new_sink, void *user) noexcept {
  sink_state &s = sink();
  const lock_guard lock(s.mutex);
  s.sink = new_sink;
  s.user = user;
}

std::uint64_t background_error_count() noexcept {
  return background_errors.load(std::memory_order_relaxed);
}

void report_background_error(const error &e) noexcept {
  if (driver_is_gone(e.code)) return;
  background_errors.fetch_add(1, std::memory_order_relaxed);
  // Called outside the lock, so that a sink may set another sink or report in turn.
  error_sink call = nullptr;
  void *user = nullptr;
  {
    sink_state &s = sink();
    const lock_guard lock(s.mutex);
    call = s.sink;
    user = s.user;
  }
  if (call != nullptr) call(e, user);
}

}  // namespace stillmap
