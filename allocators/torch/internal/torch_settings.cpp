#include "stillmap/allocators/torch/internal/torch_settings.h"
#include "stillmap/vmm/base/try.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace stillmap::torch_plugin {

result<std::size_t> parse_bytes(std::string_view text, const char *name) {
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

result<share_settings> parse_share(std::string_view text, const char *variable) {
  share_settings out;
  const std::size_t colon = text.rfind(':');
  out.name = text.substr(0, colon);
  const auto refused = [&](const char *why) {
    return tl::unexpected(make_error(errc::invalid_argument, why).value().about(variable));
  };
  if (out.name.empty()) return refused("it has no name before the colon");
  if (colon == std::string_view::npos) return out;
  STILLMAP_ASSIGN_OR_RETURN(out.limit, parse_bytes(text.substr(colon + 1), variable));
  if (out.limit == 0) return refused("the limit must not be 0");
  return out;
}

namespace {

status read_switch(const char *name, bool &to) {
  const char *const text = ::secure_getenv(name);
  if (text == nullptr || *text == 0) return {};
  const std::string_view said = text;
  if (said != "0" && said != "1") {
    return tl::unexpected(
        make_error(errc::invalid_argument, "the value is neither 0 nor 1").value().about(name));
  }
  to = said == "1";
  return {};
}

}  // namespace

result<settings> read_settings(const stated_settings &stated) {
  settings out;
  const auto read_bytes = [](const char *name, std::size_t &to) -> status {
    const char *const text = ::secure_getenv(name);
    if (text == nullptr || *text == 0) return {};
    STILLMAP_ASSIGN_OR_RETURN(to, parse_bytes(text, name));
    return {};
  };
  STILLMAP_RETURN_IF_ERROR(read_bytes("STILLMAP_TORCH_LIMIT", out.limit));
  STILLMAP_RETURN_IF_ERROR(read_bytes("STILLMAP_TORCH_PAGE_SIZE", out.page_bytes));
  STILLMAP_RETURN_IF_ERROR(read_switch("STILLMAP_TORCH_PEERS", out.peers));
  STILLMAP_RETURN_IF_ERROR(read_switch("STILLMAP_TORCH_EXPORTABLE", out.exportable));
  if (const char *const text = ::secure_getenv("STILLMAP_TORCH_TAG"); text != nullptr && *text) {
    out.tag = text;
  }
  if (const char *const text = ::secure_getenv("STILLMAP_SHARE");
      text != nullptr && *text && !stated.share) {
    STILLMAP_ASSIGN_OR_RETURN(out.share, parse_share(text, "STILLMAP_SHARE"));
  }
  out.limit = std::min(out.limit, stated.limit.value_or(SIZE_MAX));
  out.peers = stated.peers.value_or(out.peers);
  out.tag = stated.tag.value_or(out.tag);
  out.page_bytes = stated.page_bytes.value_or(out.page_bytes);
  out.share = stated.share.value_or(out.share);
  out.exportable = stated.exportable.value_or(out.exportable);
  return out;
}

}  // namespace stillmap::torch_plugin
