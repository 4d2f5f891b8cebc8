#include "tools/stillmap/demo/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tools/stillmap/common/size.h"
#include "tools/stillmap/common/text.h"

namespace stillmap::tool {

std::optional<byte_difference> first_difference(std::span<const std::byte> source,
                                                std::span<const std::byte> device,
                                                std::uint64_t offset) {
  const std::size_t n = std::min(source.size(), device.size());
  if (n == 0 || std::memcmp(source.data(), device.data(), n) == 0) return std::nullopt;
  const auto [s, d] = std::mismatch(source.begin(), source.begin() + static_cast<std::ptrdiff_t>(n),
                                    device.begin());
  return byte_difference{offset + static_cast<std::uint64_t>(s - source.begin()),
                         std::to_integer<unsigned>(*s), std::to_integer<unsigned>(*d)};
}

verdict judge(const observed &o) {
  std::vector<std::string> wrong;

  if (o.differs) {
    wrong.push_back(fmt::format("byte {} is wrong: the source has {:#04x}, the device {:#04x}",
                                o.differs->offset, o.differs->source, o.differs->device));
  } else if (!o.source_trouble.empty()) {
    wrong.push_back(o.source_trouble);
  } else if (o.digests_differ) {
    wrong.push_back(fmt::format(
        "the content is wrong: the digest of the {} bytes read back is not that of the source",
        o.bytes));
  } else if (o.bytes_checked != o.bytes) {
    wrong.push_back(fmt::format("only {} of {} bytes could be checked", o.bytes_checked, o.bytes));
  }

  if (const std::uint64_t moves = o.moves(); o.moved()) {
    wrong.push_back(fmt::format("the address moved from {} to {} ({} {})",
                                hexadecimal(o.first_address.value()),
                                hexadecimal(o.last_address.value()),
                                std::max<std::uint64_t>(moves, 1), moves > 1 ? "times" : "time"));
  }

  const std::uint64_t copied =
      std::max({o.copied_by_calls, o.copied_by_buffer, o.copied_by_driver.value_or(0)});
  if (copied != 0) wrong.push_back(fmt::format("{} bytes copied to grow", copied));

  if (!wrong.empty()) return {false, "stillmap: FAILED: " + join(wrong, "; ")};
  return {true,
          fmt::format("stillmap: ok: {} bytes in {} growths, 0 bytes copied, address unchanged",
                      o.bytes, o.growths)};
}

}  // namespace stillmap::tool
