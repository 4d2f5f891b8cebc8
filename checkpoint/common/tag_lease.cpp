#include "stillmap/checkpoint/common/tag_lease.h"

#include <algorithm>
#include <map>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::checkpoint {
namespace {

constexpr int exclusively = -1;

struct leases {
  stillmap::mutex mutex;
  // The number of shared leases, or `exclusively`.
  std::map<std::pair<const address_space *, std::string>, int> held STILLMAP_GUARDED_BY(mutex);
};

leases &all_leases() {
  static undying<leases> all;
  return *all;
}

}  // namespace

result<tag_lease> tag_lease::take(const device &d, std::span<const std::string> tags,
                                  lease_kind kind) {
  return with_host_memory("tag_lease::take", [&]() -> result<tag_lease> {
    tag_lease out(&d.space(), kind);
    out.tags_.reserve(tags.size());
    leases &all = all_leases();
    const lock_guard lock(all.mutex);
    for (const std::string &tag : tags) {
      std::string mine = tag;
      const auto [at, first] = all.held.try_emplace({out.space_, tag}, 0);
      if (!first && (kind == lease_kind::exclusive || at->second == exclusively)) {
        const error e =
            make_error(
                errc::busy,
                "another call is saving, suspending, resuming or sending the memory, or other "
                "processes have tensors in it")
                .value();
        return tl::unexpected(e.about("tag " + tag));
      }
      at->second = kind == lease_kind::exclusive ? exclusively : at->second + 1;
      out.tags_.push_back(std::move(mine));
    }
    return out;
  });
}

tag_lease::~tag_lease() {
  if (tags_.empty()) return;
  leases &all = all_leases();
  const lock_guard lock(all.mutex);
  for (const std::string &tag : tags_) {
    // Without a key of its own, which would take host memory. Leases are few.
    const auto mine = [&](const auto &l) {
      return l.first.first == space_ && l.first.second == tag;
    };
    const auto at = std::find_if(all.held.begin(), all.held.end(), mine);
    if (at->second == exclusively || --at->second == 0) all.held.erase(at);
  }
}

}  // namespace stillmap::checkpoint
