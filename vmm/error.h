// How anything in Stillmap fails: a value saying what, where, how much was asked and what the limit
// was. Never an exception, never exit. docs/design.md#errors
#pragma once

#include <cstdint>
#include <string>
#include <system_error>

#include <tl/expected.hpp>

namespace stillmap {

// What a caller can act on, whatever the driver called it. Compare: `e.code == condition::busy`.
enum class condition {
  out_of_memory = 1,        // physical memory; freeing some and retrying can succeed
  address_space_exhausted,  // no reservation of that size, or the mapping ceiling is reached
  invalid_argument,         // the call was wrong; retrying cannot help
  not_supported,            // this driver, device or backing cannot do it
  busy,                     // work or another owner still needs it
  device_lost,              // the context is broken for good
  corrupt,                  // data or books contradict themselves
};

// Codes that come from a driver: the value is the CUresult, the message its name and meaning.
const std::error_category &cuda_category() noexcept;
// Codes made by Stillmap itself: the value is a condition.
const std::error_category &stillmap_category() noexcept;

std::error_code make_error_code(condition c) noexcept;            // in stillmap_category
std::error_condition make_error_condition(condition c) noexcept;  // what codes compare equal to

// One failure. Cheap to copy: allocates nothing; the strings are literals.
struct error {
  std::error_code code;
  const char *operation = "";  // "growable_buffer::resize", "cuMemCreate"
  const char *reason = "";     // one clause: "the size is over the reservation"
  std::uint64_t value = 0;     // what was asked for, in the unit the operation takes
  std::uint64_t limit = 0;     // what was free or allowed; 0 where there is no such number

  bool is(condition c) const { return code == make_error_condition(c); }

  // "growable_buffer::resize: the size is over the reservation (asked 96.0 GiB = 103079215104,
  // limit 64.0 GiB = 68719476736): invalid argument". Allocates.
  std::string message() const;
};

template <class T>
using result = tl::expected<T, error>;
using status = result<void>;

// The error of a refused call.
inline tl::unexpected<error> refuse(condition c, const char *operation, const char *reason,
                                    std::uint64_t value = 0, std::uint64_t limit = 0) {
  return tl::unexpected<error>(error{make_error_code(c), operation, reason, value, limit});
}

// Failures that have nobody to return to (destructors, background work) come here: counted, and
// handed to the sink. A driver that is shutting down counts as released and is not reported.
// Threads: safe. The sink must not throw; nullptr restores the default, which counts only.
using error_sink = void (*)(const error &, void *user) noexcept;
void set_error_sink(error_sink sink, void *user) noexcept;
std::uint64_t unreported_errors() noexcept;  // how many have come here since the process began
void report_unreturnable(const error &e) noexcept;

}  // namespace stillmap

template <>
struct std::is_error_condition_enum<stillmap::condition> : std::true_type {};
