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

// "GPU-01020304-0506-0708-090a-0b0c0d0e0f10", as NVML writes it.
bool parse_uuid(std::string_view text, std::array<unsigned char, 16> &into) {
  constexpr std::string_view form = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (text.size() != form.size()) return false;
  std::size_t digits = 0;
  for (std::size_t i = 0; i < form.size(); ++i) {
    unsigned value = 0;
    const bool is_digit = form[i] == 'x';
    if (is_digit) {
      const auto [end, failed] = std::from_chars(&text[i], &text[i] + 1, value, 16);
      if (failed != std::errc()) return false;
      unsigned char &byte = into[digits++ / 2];
      byte = static_cast<unsigned char>(byte << 4 | value);
    } else if (text[i] != form[i]) {
      return false;
    }
  }
  return true;
}

bool read_amount(std::string_view text, std::size_t &into) {
  if (text.empty()) return true;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), into);
  return failed == std::errc() && end == text.data() + text.size();
}

std::vector<settings::device_limits> read_device_limits() {
  const char *const given = variable("STILLMAP_PRELOAD_DEVICE_LIMITS");
  std::vector<settings::device_limits> out;
  for (std::string_view rest = given != nullptr ? given : ""; !rest.empty();) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    const std::size_t is = one.find('=');
    const std::string_view bytes = is == std::string_view::npos ? "-" : one.substr(is + 1);
    const std::size_t colon = std::min(bytes.find(':'), bytes.size());
    settings::device_limits l;
    if (parse_uuid(one.substr(0, is), l.uuid) && read_amount(bytes.substr(0, colon), l.hard) &&
        read_amount(bytes.substr(std::min(colon + 1, bytes.size())), l.soft)) {
      out.push_back(l);
      continue;
    }
    std::fprintf(stderr,
                 "stillmap: STILLMAP_PRELOAD_DEVICE_LIMITS: '%.*s' is not GPU-UUID=BYTES:BYTES: it "
                 "is not used\n",
                 static_cast<int>(one.size()), one.data());
  }
  return out;
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
  out.of_devices = read_device_limits();
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

settings::device_limits limits_of(const std::array<unsigned char, 16> &uuid) {
  const settings &given = given_settings();
  settings::device_limits out{uuid, given.limit, SIZE_MAX};
  for (const settings::device_limits &l : given.of_devices) {
    if (l.uuid != uuid) continue;
    out.hard = std::min(out.hard, l.hard);
    out.soft = std::min(out.soft, l.soft);
  }
  return out;
}

}  // namespace stillmap::preload
