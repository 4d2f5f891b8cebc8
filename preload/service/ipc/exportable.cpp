#include "preload/service/ipc/exportable.h"

#include <sys/resource.h>

#include <algorithm>

#include "preload/service/settings.h"

namespace stillmap::preload {
namespace {

// Of the descriptors that the process may open, this part at most is for pages.
constexpr std::size_t descriptor_share = 4;

bool descriptors_suffice(const device &d) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  const std::size_t bytes =
      std::min<std::size_t>(d.total_memory().bytes(), limits_of(d.uuid()).hard);
  return bytes / d.capabilities().page_bytes <= limit.rlim_cur / descriptor_share;
}

}  // namespace

bool pages_are_exportable(const device &d) {
  const settings::choice asked = given_settings().ipc;
  if (asked == settings::choice::no || !d.capabilities().vmm || !d.capabilities().posix_fd_export) {
    return false;
  }
  return asked == settings::choice::yes || !d.driver().is_simulator() || descriptors_suffice(d);
}

}  // namespace stillmap::preload
