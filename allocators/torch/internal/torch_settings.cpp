#include "stillmap/allocators/torch/internal/torch_settings.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "stillmap/vmm/base/parse_bytes.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::torch_plugin {

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
