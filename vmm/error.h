// Errors of all of Stillmap: result<T>, status, and one error type. Never an exception, never exit.
// docs/errors.md
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <system_error>

#include <tl/expected.hpp>

namespace stillmap {

// Portable error conditions that a caller can act on. Compare: `e.code == errc::busy`.
enum class errc {
  out_of_memory = 1,        // physical memory; freeing some and retrying can succeed
  address_space_exhausted,  // no reservation of that size, or the mapping limit is reached
  invalid_argument,         // the call was wrong; retrying cannot help
  not_supported,            // this driver, device or backing cannot do it
  busy,                     // work or another owner still needs it
  device_lost,              // the context is broken for good
  corrupt,                  // data or internal state is inconsistent
};

// Codes that come from a driver: the value is the CUresult, the message its name and meaning.
const std::error_category &cuda_category() noexcept;
// Codes made by Stillmap itself: the value is an errc.
const std::error_category &stillmap_category() noexcept;

std::error_code make_error_code(errc c) noexcept;            // in stillmap_category
std::error_condition make_error_condition(errc c) noexcept;  // what codes compare equal to

// The unit of an error's value and limit.
enum class error_unit : std::uint8_t {
  none,  // a number without a unit: an index, an ordinal, an id
  bytes,
  pages,
  address,       // printed in hexadecimal
  milliseconds,
  items,         // a count of things
};

// What an error was about, where that is known only at run time. Empty strings say nothing.
struct error_detail {
  std::string subject{};   // a path, a tag, a socket, a peer: "a.smi"
  std::string where{};     // the part of it: "superblock at 24"
  std::string found{};     // what was there
  std::string expected{};  // what should have been there
  std::string cause{};     // another process's or machine's own account of the failure, one line
};

// One failure. Copying it allocates nothing: operation and reason are literals, and copies share the
// detail.
struct error {
  std::error_code code;
  const char *operation = "";  // "growable_buffer::resize", "cuMemCreate"
  const char *reason = "";     // one clause: "the size exceeds the reservation"
  std::uint64_t value = 0;     // what was requested
  std::uint64_t limit = 0;     // what was free or allowed; 0 where there is no such number
  error_unit unit = error_unit::none;          // of value and limit
  std::shared_ptr<const error_detail> more{};  // null: none

  bool is(errc c) const { return code == make_error_condition(c); }

  // Null-safe access to `more`.
  const error_detail &detail() const noexcept;

  // Copies of this error with (more of) a detail. Strings that are empty leave what is there. Where
  // the host has no memory for it, the error is returned without.
  error with(error_detail d) const noexcept;
  error about(std::string subject) const noexcept;  // sets the subject unless there is one

  // "growable_buffer::resize: the size exceeds the reservation (requested 96.0 GiB = 103079215104 B,
  // limit 64.0 GiB = 68719476736 B): invalid argument". With a detail, the subject comes first:
  // "a.smi: superblock at 24: ...". Allocates.
  std::string message() const;
};

// A value, or an error. An ignored result is a compiler warning.
template <class T>
class [[nodiscard]] result : public tl::expected<T, error> {
 public:
  using tl::expected<T, error>::expected;
  result(const tl::expected<T, error> &other) : tl::expected<T, error>(other) {}
  result(tl::expected<T, error> &&other) noexcept(
      std::is_nothrow_move_constructible_v<tl::expected<T, error>>)
      : tl::expected<T, error>(std::move(other)) {}
};
using status = result<void>;

inline tl::unexpected<error> make_error(errc c, const char *operation, const char *reason,
                                        std::uint64_t value = 0, std::uint64_t limit = 0,
                                        error_unit unit = error_unit::none) {
  return tl::unexpected<error>(error{make_error_code(c), operation, reason, value, limit, unit, {}});
}
// An error of the operating system; `code` is an errno.
inline tl::unexpected<error> make_system_error(int code, const char *operation, const char *reason,
                                               std::string subject = {}) {
  const error e{std::error_code(code, std::system_category()), operation, reason};
  return tl::unexpected<error>(subject.empty() ? e : e.about(std::move(subject)));
}

// Background errors: failures without a caller to return to (destructors, background work). They are
// counted, and passed to the sink. A driver that is shutting down counts as released and is not
// reported.
// Threads: safe. The sink must not throw; nullptr restores the default, which counts only.
using error_sink = void (*)(const error &, void *user) noexcept;
void set_error_sink(error_sink sink, void *user) noexcept;
std::uint64_t background_error_count() noexcept;  // since the process began
void report_background_error(const error &e) noexcept;

}  // namespace stillmap

template <>
struct std::is_error_condition_enum<stillmap::errc> : std::true_type {};
