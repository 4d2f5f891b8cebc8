// The error codes of Stillmap: portable conditions, and the std::error_category of the library and
// of the CUDA driver. docs/errors.md#codes
#pragma once

#include <system_error>

namespace stillmap {

// Portable error conditions that a caller can act on. Compare: `e.code == errc::busy`.
enum class errc {
  out_of_memory = 1,        // of the device; or of the host: std::errc::not_enough_memory, too
  address_space_exhausted,  // no reservation of that size, or the mapping limit is reached
  invalid_argument,         // the call was wrong; retrying cannot help
  not_supported,            // this driver, device or backing cannot do it
  busy,                     // work or another owner still needs it
  device_lost,              // the context is broken for good
  corrupt,                  // data or internal state is inconsistent
  operation_canceled,       // a stop token or an abort request ended it; equals std::errc's
};

// Codes that come from a driver: the value is the CUresult, the message its name and meaning.
const std::error_category &cuda_category() noexcept;
// Codes made by Stillmap itself: the value is an errc.
const std::error_category &stillmap_category() noexcept;

std::error_code make_error_code(errc c) noexcept;            // in stillmap_category
std::error_condition make_error_condition(errc c) noexcept;  // what codes compare equal to

}  // namespace stillmap

template <>
struct std::is_error_condition_enum<stillmap::errc> : std::true_type {};
