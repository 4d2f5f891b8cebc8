#include "stillmap/checkpoint/common/layout.h"

#include <algorithm>
#include <unordered_map>

#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/checkpoint/common/selection.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

class describer {
 public:
  describer(const device &d, std::span<const std::string> tags, const extra_references &extra,
            published_memory_is published, peer_access_is peers)
      : device_(d), tags_(tags), extra_(extra), published_(published), peers_(peers) {}

  result<described_memory> run() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, "this device cannot map pages at addresses");
    }
    if (tags_.empty()) return make_error(errc::invalid_argument, "no tag is given");
    std::vector<bool> seen(tags_.size());
    for (const block_record &b : device_.space().blocks()) {
      const auto tag = std::find(tags_.begin(), tags_.end(), b.tag);
      if (tag == tags_.end()) continue;
      seen[static_cast<std::size_t>(tag - tags_.begin())] = true;
      STILLMAP_RETURN_IF_ERROR(device_.space().collect_range(b.range));
      auto reference = published_ == published_memory_is::referred_to ? find_published(device_, b)
                                                                      : std::nullopt;
      STILLMAP_RETURN_IF_ERROR(reference ? refer_to(std::move(*reference)) : add(b));
    }
    if (const auto missing = std::find(seen.begin(), seen.end(), false); missing != seen.end()) {
      const error e = make_error(errc::invalid_argument, "no memory has this tag").value();
      return tl::unexpected(
          e.about("tag " + tags_[static_cast<std::size_t>(missing - seen.begin())]));
    }
    for (const hold &h : holds_) {
      const page_ptr &p = out_.pages[h.page];
      if (p.use_count() == h.places + 1 + (extra_ ? extra_(p) : 0)) continue;
      return fail(errc::busy, "a page is also used outside of these tags", h.at);
    }
    return std::move(out_);
  }

 private:
  status refer_to(published_reference r) {
    for (const mapping_record &m : device_.space().mappings(r.range)) {
      if (m.state == mapping_state::mapped && m.backing->imported()) continue;
      return fail(errc::not_supported,
                  "a page of published memory was made writable here: copy the memory, or leave "
                  "out its tag",
                  m.range.begin);
    }
    out_.layout.published.push_back(std::move(r));
    return {};
  }

  status add(const block_record &b) {
    out_.layout.blocks.push_back({b.range, b.tag, b.generation});
    bool same_block = false;  // as the previous place
    for (mapping_record &m : device_.space().mappings(b.range)) {
      const device_address at = m.range.begin;
      if (m.state == mapping_state::suspended) {
        return fail(errc::busy, "memory of these tags is suspended: resume it first", at);
      }
      if (m.state == mapping_state::released) {
        return fail(errc::busy, "memory of these tags has been released", at);
      }
      if (m.backing->imported() && published_ == published_memory_is::referred_to) {
        return fail(errc::not_supported, "another process has the memory, too", at);
      }
      if (peers_ == peer_access_is::left_out) {
        std::erase_if(m.access, [&](const access_grant &g) {
          return g.location.kind == location_kind::device && g.location.id != device_.ordinal();
        });
      }
      for (access_grant &g : m.access) STILLMAP_RETURN_IF_ERROR(generalise(g.location, at));
      const auto [known, first] = known_.try_emplace(m.backing->id(), out_.pages.size());
      if (first) {
        physical_properties properties = m.backing->properties();
        STILLMAP_RETURN_IF_ERROR(generalise(properties.location, at));
        out_.layout.pages.push_back({m.range.bytes, properties});
        holds_.push_back({out_.pages.size(), at, 0});
        out_.pages.push_back(std::move(m.backing));
      }
      ++holds_[known->second].places;
      out_.layout.places.push_back(
          {at, static_cast<std::uint32_t>(known->second), index_of(m.access)});
      extend(out_.runs, m.range, same_block);
      same_block = true;
    }
    return {};
  }

  // Replaces this process's ordinal of the device by own_device.
  status generalise(memory_location &l, device_address at) const {
    if (l.kind != location_kind::device) return {};
    if (l.id != device_.ordinal()) {
      return fail(errc::not_supported, "another device can access the memory", at);
    }
    l.id = memory_layout::own_device;
    return {};
  }

  std::uint32_t index_of(const std::vector<access_grant> &access) {
    auto &all = out_.layout.access;
    auto found = std::find(all.begin(), all.end(), access);
    if (found == all.end()) found = all.insert(all.end(), access);
    return static_cast<std::uint32_t>(found - all.begin());
  }

  static tl::unexpected<error> fail(errc c, const char *reason, device_address at) {
    return make_error(c, reason, at.value(), 0, error_unit::address);
  }

  struct hold {
    std::size_t page;
    device_address at;
    std::uint32_t places;
  };
  const device &device_;
  std::span<const std::string> tags_;
  const extra_references &extra_;
  const published_memory_is published_;
  const peer_access_is peers_;
  described_memory out_;
  std::unordered_map<std::uint64_t, std::size_t> known_;  // by page id: index in pages and holds_
  std::vector<hold> holds_;
};

bool whole_pages(virtual_range r, std::size_t granularity) {
  return r.bytes != 0 && r.bytes % granularity == 0 && r.begin.value() % granularity == 0 &&
         r.begin.value() != 0 && r.begin.value() + r.bytes > r.begin.value();
}

}  // namespace

std::size_t memory_layout::bytes() const {
  std::size_t sum = 0;
  for (const page &p : pages) sum += p.bytes;
  return sum;
}

std::vector<virtual_range> memory_layout::tagged(std::string_view tag) const {
  std::vector<virtual_range> out;
  for (const block &b : blocks) {
    if (b.tag == tag) out.push_back(b.range);
  }
  return out;
}

std::size_t memory_layout::mapped_bytes(virtual_range within) const {
  std::size_t sum = 0;
  for (const place &p : places) {
    if (within.contains(p.at)) sum += pages[p.page].bytes;
  }
  return sum;
}

result<described_memory> describe(const device &d, std::span<const std::string> tags,
                                  const extra_references &extra, published_memory_is published,
                                  peer_access_is peers) {
  return with_host_memory("checkpoint::describe",
                          [&] { return describer(d, tags, extra, published, peers).run(); });
}

status detach_pages(const device &d, const described_memory &memory) {
  return with_host_memory("checkpoint::detach_pages", [&]() -> status {
    remap_plan plan({});
    for (const virtual_range r : memory.runs) plan.suspend(r, suspended_for_good);
    return plan.empty() ? status() : d.space().apply(std::move(plan));
  });
}

namespace {

result<std::vector<device_address>> find_readable_addresses(const memory_layout &l) {
  std::vector<bool> readable;
  for (const auto &list : l.access) {
    readable.push_back(std::any_of(list.begin(), list.end(), [](const access_grant &g) {
      return g.location == on_device(memory_layout::own_device) && g.mode != access_mode::none;
    }));
  }
  std::vector<device_address> at(l.pages.size());
  for (const memory_layout::place &p : l.places) {
    if (!at[p.page] && readable[p.access]) at[p.page] = p.at;
  }
  for (const memory_layout::place &p : l.places) {
    if (at[p.page]) continue;
    return make_error(errc::not_supported, "the device may not read this page", p.at.value(), 0,
                      error_unit::address);
  }
  return at;
}

status check_layout(const memory_layout &l, std::size_t granularity) {
  const auto no = [](const char *reason, device_address at) {
    return make_error(errc::corrupt, reason, at.value(), 0, error_unit::address);
  };
  for (std::size_t i = 0; i < l.blocks.size(); ++i) {
    const virtual_range r = l.blocks[i].range;
    if (!whole_pages(r, granularity)) return no("a block does not consist of whole pages", r.begin);
    if (i != 0 && r.begin < l.blocks[i - 1].range.end()) {
      return no("blocks overlap, or are not in order", r.begin);
    }
  }
  device_address referred_to;
  for (const published_reference &r : l.published) {
    if (!whole_pages(r.range, granularity)) {
      return no("a published block does not consist of whole pages", r.range.begin);
    }
    if (r.range.begin < referred_to) {
      return no("published blocks overlap, or are not in order", r.range.begin);
    }
    referred_to = r.range.end();
    const auto next = std::partition_point(l.blocks.begin(), l.blocks.end(), [&](const auto &b) {
      return b.range.end() <= r.range.begin;
    });
    if (next != l.blocks.end() && next->range.overlaps(r.range)) {
      return no("a published block overlaps another block", r.range.begin);
    }
  }
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    const std::size_t bytes = l.pages[i].bytes;
    if (bytes == 0 || bytes % granularity != 0) {
      return make_error(errc::corrupt, "a page has an invalid size", bytes, granularity,
                        error_unit::bytes);
    }
  }
  std::vector<bool> used(l.pages.size());
  auto block = l.blocks.begin();
  device_address free_from;
  for (const memory_layout::place &p : l.places) {
    if (p.page >= l.pages.size() || p.access >= l.access.size()) {
      return no("a place refers to an index out of range", p.at);
    }
    const virtual_range r{p.at, l.pages[p.page].bytes};
    if (!whole_pages(r, granularity)) return no("a place is not aligned to pages", p.at);
    while (block != l.blocks.end() && block->range.end() <= p.at) ++block;
    if (block == l.blocks.end() || !block->range.contains(r)) {
      return no("a place is outside of all blocks", p.at);
    }
    if (p.at < free_from) return no("places overlap, or are not in order", p.at);
    free_from = r.end();
    used[p.page] = true;
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    return make_error(errc::corrupt, "a page is mapped nowhere",
                      static_cast<std::uint64_t>(unused - used.begin()));
  }
  return {};
}

}  // namespace

result<std::vector<device_address>> readable_addresses(const memory_layout &l) {
  return with_host_memory("checkpoint::readable_addresses",
                          [&] { return find_readable_addresses(l); });
}

status check(const memory_layout &l, std::size_t granularity) {
  return with_host_memory("checkpoint::check", [&] { return check_layout(l, granularity); });
}

}  // namespace stillmap::checkpoint
