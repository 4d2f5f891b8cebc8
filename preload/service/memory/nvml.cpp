// NVML's memory of a device: as cuMemGetInfo says it to this program.
#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "preload/lookup/loaded_objects.h"
#include "preload/service/memory/room.h"
#include "preload/service/serve.h"

namespace stillmap::preload {
namespace {

// nvmlMemory_t and nvmlMemory_v2_t. Source: nvml.h.
struct memory {
  word total, free, used;
};
struct memory_v2 {
  number version;
  word total, reserved, free, used;
};

// Whether NVML's text, "GPU-1b4e28ba-2fa1-11d2-883f-0016d3cca427", is of the device with these bytes.
bool same_uuid(std::string_view text, const std::array<unsigned char, 16> &uuid) noexcept {
  std::size_t digit = 0;
  const std::size_t begin = text.find('-');
  for (const char c : begin == std::string_view::npos ? text : text.substr(begin + 1)) {
    if (c == '-') continue;
    unsigned value = 0;
    if (digit >= 32 || std::from_chars(&c, &c + 1, value, 16).ec != std::errc()) return false;
    if (value != (uuid[digit / 2] >> (digit % 2 == 0 ? 4 : 0) & 15U)) return false;
    ++digit;
  }
  return digit == 32;
}

// By CUDA's order, of which NVML's is independent; -1: it has none there.
int ordinal_of(word device) noexcept {
  using get_uuid = driver_code(word, char *, number);
  auto *const f = reinterpret_cast<get_uuid *>(find_behind_us("nvmlDeviceGetUUID"));
  std::array<char, 96> text{};
  number count = 0;
  if (f == nullptr || f(device, text.data(), text.size()) != code::success ||
      pass_on<function::cuDeviceGetCount>(reinterpret_cast<word>(&count)) != code::success) {
    return -1;
  }
  for (number i = 0; i < count; ++i) {
    std::array<unsigned char, 16> uuid{};
    if (pass_on<function::cuDeviceGetUuid>(reinterpret_cast<word>(uuid.data()), i) ==
            code::success &&
        same_uuid(text.data(), uuid)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

template <class Memory>
void limit(word device, word to) noexcept {
  Memory &m = *reinterpret_cast<Memory *>(to);
  const memory_room room = room_of(ordinal_of(device), m.free, m.total);
  m.free = room.free;
  m.total = room.total;
  m.used = room.total - std::min(room.total, room.free);
}

}  // namespace

driver_code serve(numbered<function::nvmlDeviceGetMemoryInfo>, word device, word to) noexcept {
  const driver_code result = pass_on<function::nvmlDeviceGetMemoryInfo>(device, to);
  if (result == code::success) limit<memory>(device, to);
  return result;
}
driver_code serve(numbered<function::nvmlDeviceGetMemoryInfo_v2>, word device, word to) noexcept {
  const driver_code result = pass_on<function::nvmlDeviceGetMemoryInfo_v2>(device, to);
  if (result == code::success) limit<memory_v2>(device, to);
  return result;
}

}  // namespace stillmap::preload
