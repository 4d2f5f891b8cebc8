#include "stillmap/checkpoint/common/published_blocks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/mutex.h"
#include "stillmap/vmm/base/undying.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {
namespace {

// A block, by the ledger that it is in and its number there, which is never used again.
using block_key = std::pair<const address_space *, std::uint64_t>;

struct registry {
  stillmap::mutex mutex;
  std::map<block_key, published_reference> blocks STILLMAP_GUARDED_BY(mutex);
};

registry &all_blocks() {
  static undying<registry> all;
  return *all;
}

}  // namespace

status register_published(const device &d, std::vector<published_reference> blocks) {
  return with_host_memory("checkpoint::register_published", [&]() -> status {
    std::map<block_key, published_reference> made;
    std::set<std::uint64_t> existing;
    for (const block_record &b : d.space().blocks()) existing.insert(b.id);
    for (published_reference &r : blocks) {
      const auto block = d.space().block_at(r.range.begin);
      if (!block || block->range() != r.range) {
        return make_error(errc::invalid_argument, "no block has this range", r.range.begin.value(),
                          0, error_unit::address);
      }
      made.insert_or_assign({&d.space(), block->id()}, std::move(r));
    }
    registry &all = all_blocks();
    const lock_guard lock(all.mutex);
    std::erase_if(all.blocks, [&](const auto &b) {
      return b.first.first == &d.space() && !existing.contains(b.first.second);
    });
    for (const auto &b : made) all.blocks.erase(b.first);
    all.blocks.merge(made);
    return {};
  });
}

std::optional<published_reference> find_published(const device &d, const block_record &block) {
  std::optional<published_reference> out;
  {
    registry &all = all_blocks();
    const lock_guard lock(all.mutex);
    const auto found = all.blocks.find({&d.space(), block.id});
    if (found != all.blocks.end()) out = found->second;
  }
  // A device that was opened again may have its ledger, and its numbers, where another one was.
  if (!out || out->range != block.range || out->tag != block.tag) return std::nullopt;
  const auto mappings = d.space().mappings(block.range);
  const auto is_shared = [](const mapping_record &m) { return m.backing && m.backing->imported(); };
  if (std::none_of(mappings.begin(), mappings.end(), is_shared)) return std::nullopt;
  return out;
}

}  // namespace stillmap::checkpoint
