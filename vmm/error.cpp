#include "stillmap/vmm/error.h"

#include <atomic>
#include <cstdio>
#include <iterator>
#include <mutex>

#include "stillmap/vmm/driver/cuda_errors.h"

namespace stillmap {
namespace {

class cuda_category_type final : public std::error_category {
 public:
  const char *name() const noexcept override { return "cuda"; }

  std::string message(int code) const override {
    const cuda_error &e = describe_cuda_error(code);
    std::string text = e.name;
    if (e.code != code) text += " " + std::to_string(code);
    return text + " (" + e.meaning + ")";
  }

  std::error_condition default_error_condition(int code) const noexcept override {
    const condition c = describe_cuda_error(code).acts_as;
    return c == condition{} ? std::error_condition(code, *this) : make_error_condition(c);
  }
};

class stillmap_category_type final : public std::error_category {
 public:
  const char *name() const noexcept override { return "stillmap"; }

  std::string message(int code) const override {
    switch (static_cast<condition>(code)) {
      case condition::out_of_memory:
        return "out of memory";
      case condition::address_space_exhausted:
        return "address space exhausted";
      case condition::invalid_argument:
        return "invalid argument";
      case condition::not_supported:
        return "not supported";
      case condition::busy:
        return "busy";
      case condition::device_lost:
        return "device lost";
      case condition::corrupt:
        return "corrupt";
    }
    return code == 0 ? "no error" : "unknown condition " + std::to_string(code);
  }
};

// "96.0 GiB = 103079215104": the first to read, the second to compute with. Below a kibibyte the
// number says it all, and may well count something other than bytes.
std::string amount(std::uint64_t n) {
  static constexpr const char *units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::string exact = std::to_string(n);
  if (n < 1024) return exact;
  double scaled = static_cast<double>(n) / 1024;
  std::size_t unit = 0;
  // 1023.95 would print as 1024.0
  while (scaled >= 1023.95 && unit + 1 < std::size(units)) {
    scaled /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s = ", scaled, units[unit]);
  return text + exact;
}

struct sink_state {
  std::mutex mutex;
  error_sink sink = nullptr;
  void *user = nullptr;
};

// Never destroyed: destructors of statics report here too.
sink_state &sink() {
  static sink_state *const state = new sink_state;
  return *state;
}

std::atomic<std::uint64_t> unreported{0};

}  // namespace

// Never destroyed: whoever frees memory while the process ends may still fail, and says why.
const std::error_category &cuda_category() noexcept {
  static const auto *const category = new cuda_category_type;
  return *category;
}

const std::error_category &stillmap_category() noexcept {
  static const auto *const category = new stillmap_category_type;
  return *category;
}

std::error_code make_error_code(condition c) noexcept {
  return {static_cast<int>(c), stillmap_category()};
}

std::error_condition make_error_condition(condition c) noexcept {
  return {static_cast<int>(c), stillmap_category()};
}

std::string error::message() const {
  std::string text = operation;
  if (*reason != '\0') text += (text.empty() ? "" : ": ") + std::string(reason);
  if (value != 0 || limit != 0) {
    text += " (asked " + amount(value);
    if (limit != 0) text += ", limit " + amount(limit);
    text += ")";
  }
  return (text.empty() ? text : text + ": ") + code.message();
}

void set_error_sink(error_sink new_sink, void *user) noexcept {
  sink_state &s = sink();
  const std::lock_guard lock(s.mutex);
  s.sink = new_sink;
  s.user = user;
}

std::uint64_t unreported_errors() noexcept {
  return unreported.load(std::memory_order_relaxed);
}

void report_unreturnable(const error &e) noexcept {
  if (driver_is_gone(e)) return;
  unreported.fetch_add(1, std::memory_order_relaxed);
  // Called outside the lock, so that a sink may set another sink or report in turn.
  error_sink call = nullptr;
  void *user = nullptr;
  {
    sink_state &s = sink();
    const std::lock_guard lock(s.mutex);
    call = s.sink;
    user = s.user;
  }
  if (call != nullptr) call(e, user);
}

}  // namespace stillmap
