#include "stillmap/vmm/base/parse_bytes.h"

#include <charconv>
#include <cmath>

#include "stillmap/vmm/base/operation.h"

namespace stillmap {

result<std::size_t> parse_bytes(std::string_view text, const char *name) {
  const operation_scope scope("parse_bytes");
  const auto refused = [&](const char *why) {
    return tl::unexpected(make_error(errc::invalid_argument, why).value().about(name));
  };
  double number = 0;
  const char *const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (read.ec != std::errc() || !(number >= 0)) return refused("it does not begin with a number");
  std::string_view unit(read.ptr, static_cast<std::size_t>(end - read.ptr));
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view letters = "KMGT";
    const std::size_t power = letters.find(unit.front());
    unit.remove_prefix(1);
    if (power == std::string_view::npos || (!unit.empty() && unit != "B" && unit != "iB")) {
      return refused("its unit is none of KiB, MiB, GiB and TiB");
    }
    scale = std::exp2(10.0 * static_cast<double>(power + 1));
  }
  const double bytes = number * scale;
  if (!(bytes < 9e18)) return refused("no device has as much");
  return static_cast<std::size_t>(bytes);
}

}  // namespace stillmap
