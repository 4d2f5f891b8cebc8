#include "preload/service/settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace stillmap::preload {
namespace {

const char *variable(const char *name) noexcept {
  const char *const text = ::secure_getenv(name);
  return text != nullptr && *text != 0 ? text : nullptr;
}

// Far from where the kernel places mappings, programs and the sanitizers' shadows.
constexpr std::uint64_t usual_address = 0x1400'0000'0000;
// A page of most devices; and half of what a process has, so that there is room behind for further devices.
constexpr unsigned long long address_unit = 2 << 20, end_of_addresses = 1ull << 46;

// What a variable says, as a number; without one that can be read, `usual`.
template <class Number>
Number read_number(const char *name, Number usual, Number least, const char *what) {
  const char *const text = variable(name);
  if (text == nullptr) return usual;
  const std::string_view s = text;
  Number value = 0;
  const auto [end, failed] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (failed == std::errc() && end == s.data() + s.size() && value >= least) return value;
  std::fprintf(stderr, "stillmap: %s=%s is no %s\n", name, text, what);
  return usual;
}

// 0: none is given, or none that can be used.
std::uint64_t read_address() {
  const char *const text = variable("STILLMAP_PRELOAD_ADDRESS");
  if (text == nullptr) return 0;
  std::string_view digits = text;
  if (digits.starts_with("0x")) digits.remove_prefix(2);
  unsigned long long value = 0;
  const auto [end, failed] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  const bool is_address = failed == std::errc() && end == digits.data() + digits.size() &&
                          value != 0 && value % address_unit == 0 && value < end_of_addresses;
  if (is_address) return value;
  std::fprintf(stderr,
               "stillmap: STILLMAP_PRELOAD_ADDRESS=%s is no multiple of 0x%llx below 0x%llx, in "
               "hexadecimal: memory has the usual addresses\n",
               text, address_unit, end_of_addresses);
  return 0;
}

share_settings read_share(std::size_t limit) {
  const char *const text = variable("STILLMAP_PRELOAD_SHARE");
  if (text == nullptr) return {};
  auto share = parse_share(text, "STILLMAP_PRELOAD_SHARE");
  if (!share) {
    std::fprintf(stderr, "stillmap: %s: memory is not shared\n", share.error().message().c_str());
    return {};
  }
  share->terms.maximum = limit == SIZE_MAX ? UINT64_MAX : limit;
  share->terms.minimum = read_number("STILLMAP_PRELOAD_MINIMUM", std::uint64_t{0}, std::uint64_t{0},
                                     "number of bytes: there is no minimum");
  share->terms.priority =
      read_number("STILLMAP_PRELOAD_PRIORITY", 0, INT32_MIN, "number: the priority is 0");
  return std::move(*share);
}

allocator_kind read_allocator() {
  const char *const text = variable("STILLMAP_PRELOAD_ALLOCATOR");
  const std::string_view kind = text != nullptr ? text : "stillmap";
  if (kind == "driver") return allocator_kind::driver;
  if (kind != "stillmap") {
    std::fprintf(stderr,
                 "stillmap: STILLMAP_PRELOAD_ALLOCATOR=%s is neither stillmap nor driver: it is "
                 "stillmap\n",
                 text);
  }
  return allocator_kind::stillmap;
}

settings read() {
  settings out;
  out.limit = read_number("STILLMAP_PRELOAD_LIMIT", std::size_t{SIZE_MAX}, std::size_t{1},
                          "number of bytes: there is no limit");
  if (const char *const text = variable("STILLMAP_PRELOAD_TAG")) out.tag = text;
  if (const char *const text = variable("STILLMAP_PRELOAD_IPC")) {
    const std::string_view s = text;
    if (s == "1" || s == "0") {
      out.ipc = s == "1" ? settings::choice::yes : settings::choice::no;
    } else {
      std::fprintf(stderr, "stillmap: STILLMAP_PRELOAD_IPC=%s is neither 0 nor 1\n", text);
    }
  }
  if (const char *const text = variable("STILLMAP_PRELOAD_STATS")) out.stats = text;
  if (const char *const text = variable("STILLMAP_PRELOAD_CONTROL")) {
    out.control = true;
    if (std::string_view(text) != "1") out.control_folder = text;
  }
  out.address = read_address();
  if (out.address == 0 && out.control) out.address = usual_address;
  constexpr std::uint64_t longest = 24 * 3'600'000;
  const std::uint64_t ms = read_number("STILLMAP_PRELOAD_CONTROL_TIMEOUT", std::uint64_t{10'000},
                                       std::uint64_t{1}, "number of milliseconds: it is 10000");
  out.control_timeout = std::chrono::milliseconds(std::min(ms, longest));
  out.allocator = read_allocator();
  out.share = read_share(out.limit);
  return out;
}

}  // namespace

// Never destroyed: calls may come at the program's very end.
const settings &given_settings() {
  static const settings *const given = new settings(read());
  return *given;
}

}  // namespace stillmap::preload
