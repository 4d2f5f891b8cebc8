#include "tools/stillmap/image/restored_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "stillmap/checkpoint/snapshot/internal/layout_manifest.h"
#include "stillmap/vmm/context.h"
#include "tools/stillmap/common/size.h"
#include "tools/stillmap/image/image_options.h"

namespace stillmap::tool {
namespace {

constexpr std::size_t step = std::size_t{4} << 20;

bool readable(const std::vector<access_grant> &list) {
  return std::any_of(list.begin(), list.end(),
                     [](const access_grant &g) { return g.mode != access_mode::none; });
}

}  // namespace

outcome<std::uint64_t> compare_with_image(const checkpoint::restored_memory &memory,
                                          const image::reader &image,
                                          const std::vector<std::string> &tags,
                                          const std::function<void(std::uint64_t)> &told) {
  const auto wanted = snapshot::wanted_of(image.what(), tags);
  if (!wanted) return fail(wanted.error());
  const checkpoint::memory_layout &l = memory.layout();
  const device &d = memory.device();
  const context_guard guard(d.driver(), d.context());
  if (!guard.entered()) return fail(guard.entered().error());
  std::vector<std::byte> there(step), here(step);
  std::vector<bool> seen(l.pages.size());
  std::uint64_t compared = 0;
  // Every place, so that a page that is at two is seen at both.
  for (const auto &p : l.places) {
    if (!readable(l.access[p.access])) continue;
    const std::size_t bytes = l.pages[p.page].bytes;
    for (std::size_t at = 0; at < bytes; at += step) {
      const std::size_t n = std::min(step, bytes - at);
      if (auto read = image.read(wanted->offsets[p.page] + at, std::span(there).first(n)); !read) {
        return fail(read.error());
      }
      if (status s = d.driver().copy_to_host(here.data(), p.at + at, n); !s) return fail(s.error());
      if (std::memcmp(here.data(), there.data(), n) != 0) {
        const auto where =
            std::mismatch(here.begin(), here.begin() + static_cast<long>(n), there.begin());
        return fail(
            exit_failed,
            fmt::format("the memory differs from the image at {}",
                        hexadecimal((p.at + at).value() +
                                    static_cast<std::uint64_t>(where.first - here.begin()))));
      }
      if (!seen[p.page]) compared += n;
      told(compared);
    }
    seen[p.page] = true;
  }
  return compared;
}

}  // namespace stillmap::tool
