#include "tools/stillmap/image/restored_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/image/image_diff.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t compared_at_once = std::size_t{4} << 20;

bool readable(const std::vector<access_grant> &list) {
  return std::any_of(list.begin(), list.end(),
                     [](const access_grant &g) { return g.mode != access_mode::none; });
}

}  // namespace

outcome<std::uint64_t> compare_with_image(const checkpoint::restored_memory &memory,
                                          const image::reader &image,
                                          const std::vector<std::string> &tags,
                                          const std::function<void(std::uint64_t)> &on_progress) {
  const checkpoint::memory_layout &l = memory.layout();
  std::vector<image_place> places = places_of(image.manifest());
  std::erase_if(places, [&](const image_place &p) {
    const std::string &tag = image.manifest().tags[p.tag];
    return !tags.empty() && std::find(tags.begin(), tags.end(), tag) == tags.end();
  });
  if (places.size() != l.places.size()) {
    return fail(exit_differs, image.path() + ": the restored memory has another layout");
  }
  const device &d = memory.device();
  const context_guard guard(d.driver(), d.context());
  if (!guard.entered()) return fail(guard.entered().error());
  std::vector<std::byte> expected(compared_at_once), actual(compared_at_once);
  std::vector<bool> seen(l.pages.size());
  std::uint64_t compared = 0;
  // At every address, so that an aliased page is read at each.
  for (std::size_t i = 0; i < l.places.size(); ++i) {
    const auto &p = l.places[i];
    if (!readable(l.access[p.access])) continue;
    const std::size_t bytes = l.pages[p.page].bytes;
    for (std::size_t at = 0; at < bytes; at += compared_at_once) {
      const std::size_t n = std::min(compared_at_once, bytes - at);
      STILLMAP_RETURN_IF_ERROR(
          about(image.read(places[i].at + at, std::span(expected).first(n)), image.path()));
      STILLMAP_RETURN_IF_ERROR(d.driver().copy_to_host(actual.data(), p.at + at, n));
      if (std::memcmp(actual.data(), expected.data(), n) != 0) {
        const auto where =
            std::mismatch(actual.begin(), actual.begin() + static_cast<long>(n), expected.begin());
        return fail(
            exit_differs,
            fmt::format("{}: the memory differs from the image at {}", image.path(),
                        hexadecimal((p.at + at).value() +
                                    static_cast<std::uint64_t>(where.first - actual.begin()))));
      }
      if (!seen[p.page]) compared += n;
      on_progress(compared);
    }
    seen[p.page] = true;
  }
  return compared;
}

}  // namespace stillmap::tool
