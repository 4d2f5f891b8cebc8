// Errors of all modules: `error`, `result<T>` and `status`. Operations return every failure: they throw
// no exception and never end the process. Queries that may throw std::bad_alloc say so. docs/errors.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

#include "stillmap/vmm/base/error_code.h"
#include "stillmap/vmm/base/version.h"  // stops before C++20

namespace stillmap {

// The unit of an error's value and limit.
enum class error_unit : std::uint8_t {
  none,  // a number without a unit: an index, an ordinal, an id
  bytes,
  pages,
  address,  // printed in hexadecimal: "at 0x7f0000200000"
  milliseconds,
  items,  // a count of things
};

// The part of an error that is known only at run time. An empty string means "not given".
struct error_detail {
  std::string subject{};   // the path, tag, socket or peer concerned: "a.smi"
  std::string where{};     // the position in the subject: "superblock at 24"
  std::string found{};     // the value that was read
  std::string expected{};  // the value that is valid there
  std::string cause{};     // the error message of another process or machine, one line
};

// One failure. Copying an error allocates nothing: operation and reason are string literals, and
// copies share the detail.
struct error {
  std::error_code code;
  const char *operation =
      "";  // the function that was called, or the driver's: "growable_buffer::resize"
  const char *reason = "";                     // one clause: "the size exceeds the reservation"
  std::uint64_t value = 0;                     // the number requested
  std::uint64_t limit = 0;                     // the number available or allowed; 0: none is known
  error_unit unit = error_unit::none;          // of value and limit
  std::shared_ptr<const error_detail> more{};  // null: no detail

  bool is(errc c) const { return code == make_error_condition(c); }

  // Null-safe access to `more`.
  const error_detail &detail() const noexcept;

  // A copy with the non-empty strings of `d` in its detail; the other strings stay. If the host has
  // no memory for the detail, the copy is returned without the change.
  error with(error_detail d) const noexcept;
  // A copy with `subject` as the subject, unless the error has one already.
  error about(std::string subject) const noexcept;

  // "growable_buffer::resize: the size exceeds the reservation (requested 96 GiB = 103079215104
  // B, limit 64 GiB = 68719476736 B): invalid argument". With a detail, the subject comes first:
  // "a.smi: superblock at 24: ...". Allocates host memory: may throw std::bad_alloc.
  std::string message() const;
};

// A value, or an error. A call that ignores the result gets a compiler warning (-Wunused-result),
// so with -Werror it does not compile.
template <class T>
class [[nodiscard]] result : public tl::expected<T, error> {
 public:
  using base = tl::expected<T, error>;
  using base::base;
  result(const base &other) : base(other) {}
  result(base &&other) noexcept(std::is_nothrow_move_constructible_v<base>)
      : base(std::move(other)) {}

  // As in tl::expected, but for functions `f` that return a result.
  template <class F>
  auto and_then(F &&f) const & {
    return chain(*this, std::forward<F>(f));
  }
  template <class F>
  auto and_then(F &&f) && {
    return chain(std::move(*this), std::forward<F>(f));
  }

 private:
  template <class Self, class F>
  static auto chain(Self &&self, F &&f) {
    if constexpr (std::is_void_v<T>) {
      using next = std::invoke_result_t<F>;
      return self ? std::forward<F>(f)() : next(tl::unexpect, std::forward<Self>(self).error());
    } else {
      using next = std::invoke_result_t<F, decltype(*std::forward<Self>(self))>;
      return self ? std::forward<F>(f)(*std::forward<Self>(self))
                  : next(tl::unexpect, std::forward<Self>(self).error());
    }
  }
};
using status = result<void>;

// An error of Stillmap's own, to be returned from a function with a result. Its operation is the function
// that runs: operation_scope::current().
[[nodiscard]] tl::unexpected<error> make_error(errc c, const char *reason, std::uint64_t value = 0,
                                               std::uint64_t limit = 0,
                                               error_unit unit = error_unit::none) noexcept;
// An error of the operating system; `code` is an errno value. Without host memory it has no subject.
[[nodiscard]] tl::unexpected<error> make_system_error(int code, const char *reason,
                                                      std::string subject = {}) noexcept;

// Background errors: failures without a caller to return to (destructors, background work). They
// are counted, and passed to the sink. A driver that is shutting down counts as released and is not
// reported.
// Threads: safe. The sink must not throw; nullptr restores the default, which counts only.
using error_sink = void (*)(const error &, void *user) noexcept;
void set_error_sink(error_sink sink, void *user) noexcept;
std::uint64_t background_error_count() noexcept;  // since the process began
void report_background_error(const error &e) noexcept;

}  // namespace stillmap
