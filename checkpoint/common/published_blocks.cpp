#include "stillmap/checkpoint/common/published_blocks.h"

#include <map>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"

namespace stillmap::checkpoint {
namespace {

using block_key = std::pair<const address_space *, device_address>;

struct registry {
  stillmap::mutex mutex;
  std::map<block_key, published_reference> blocks STILLMAP_GUARDED_BY(mutex);
};

registry &all_blocks() {
  static undying<registry> all;
  return *all;
}

}  // namespace

result<published_blocks> published_blocks::add(const device &d,
                                               std::vector<published_reference> blocks) {
  return with_host_memory("published_blocks::add", [&]() -> result<published_blocks> {
    published_blocks out;
    out.space_ = &d.space();
    out.blocks_.reserve(blocks.size());
    registry &all = all_blocks();
    for (published_reference &b : blocks) {
      const device_address begin = b.range.begin;
      const lock_guard lock(all.mutex);
      all.blocks.insert_or_assign({out.space_, begin}, std::move(b));
      out.blocks_.push_back(begin);
    }
    return out;
  });
}

published_blocks::~published_blocks() {
  if (blocks_.empty()) return;
  registry &all = all_blocks();
  const lock_guard lock(all.mutex);
  for (const device_address begin : blocks_) all.blocks.erase({space_, begin});
}

std::optional<published_reference> published_blocks::find(const device &d, device_address begin) {
  registry &all = all_blocks();
  const lock_guard lock(all.mutex);
  const auto found = all.blocks.find({&d.space(), begin});
  return found == all.blocks.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace stillmap::checkpoint
