#include "stillmap/checkpoint/common/layout.h"

#include <algorithm>
#include <unordered_map>

#include "stillmap/checkpoint/common/internal/selection.h"
#include "stillmap/vmm/remap.h"

namespace stillmap::checkpoint {
namespace {

constexpr const char *op = "checkpoint::describe";

class describing {
 public:
  describing(const device &d, std::span<const std::string> tags, const other_holders &holders)
      : device_(d), tags_(tags), holders_(holders) {}

  result<described_memory> run() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, op, "this device cannot map pages at addresses");
    }
    std::vector<bool> seen(tags_.size());
    for (const block_record &b : device_.space().blocks()) {
      const auto tag = std::find(tags_.begin(), tags_.end(), b.tag);
      if (tag == tags_.end()) continue;
      seen[static_cast<std::size_t>(tag - tags_.begin())] = true;
      status s = device_.space().settle(b.range);
      if (s) s = take(b);
      if (!s) return tl::unexpected(s.error());
    }
    const auto missing = std::find(seen.begin(), seen.end(), false);
    if (missing != seen.end() || tags_.empty()) {
      return make_error(errc::invalid_argument, op, "no memory has one of these tags",
                    static_cast<std::uint64_t>(missing - seen.begin()), tags_.size());
    }
    for (const hold &h : holds_) {
      const page_ptr &p = out_.pages[h.page];
      if (p.use_count() == h.places + 1 + (holders_ ? holders_(p) : 0)) continue;
      return make_error(errc::busy, op, "a page is used outside of these tags", h.at.value(),
                    p->bytes());
    }
    return std::move(out_);
  }

 private:
  status take(const block_record &b) {
    out_.layout.blocks.push_back({b.range, b.tag, b.generation});
    bool inside = false;
    for (mapping_record &m : device_.space().mappings(b.range)) {
      const std::uint64_t at = m.range.begin.value();
      if (m.state == mapping_state::suspended) {
        return make_error(errc::busy, op, "memory of these tags is suspended", at);
      }
      if (m.backing->imported()) {
        return make_error(errc::not_supported, op, "the memory is another process's", at);
      }
      for (access_grant &g : m.access) {
        if (status s = name(g.who, at); !s) return s;
      }
      const auto [known, first] = known_.try_emplace(m.backing->id(), out_.pages.size());
      if (first) {
        physical_properties properties = m.backing->properties();
        if (status s = name(properties.location, at); !s) return s;
        out_.layout.pages.push_back({m.range.bytes, properties});
        holds_.push_back({out_.pages.size(), m.range.begin, 0});
        out_.pages.push_back(std::move(m.backing));
      }
      ++holds_[known->second].places;
      out_.layout.places.push_back(
          {m.range.begin, static_cast<std::uint32_t>(known->second), listed(m.access)});
      extend(out_.runs, m.range, inside);
      inside = true;
    }
    return {};
  }

  status name(memory_location &l, std::uint64_t at) const {
    if (l.kind != location_kind::device) return {};
    if (l.id != device_.ordinal()) {
      return make_error(errc::not_supported, op, "another device takes part in the memory", at);
    }
    l.id = memory_layout::own_device;
    return {};
  }

  std::uint32_t listed(const std::vector<access_grant> &access) {
    auto &all = out_.layout.access;
    auto found = std::find(all.begin(), all.end(), access);
    if (found == all.end()) found = all.insert(all.end(), access);
    return static_cast<std::uint32_t>(found - all.begin());
  }

  struct hold {
    std::size_t page;
    device_address at;
    std::uint32_t places;
  };
  const device &device_;
  std::span<const std::string> tags_;
  const other_holders &holders_;
  described_memory out_;
  std::unordered_map<std::uint64_t, std::size_t> known_;  // by id of the page
  std::vector<hold> holds_;
};

bool sane(virtual_range r, std::size_t granularity) {
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
                                  const other_holders &holders) {
  return describing(d, tags, holders).run();
}

status take_away(const device &d, const described_memory &what) {
  const std::uint64_t by = next_suspension();
  remap_plan plan({});
  for (const virtual_range r : what.runs) plan.suspend(r, by);
  return plan.empty() ? status() : d.space().apply(std::move(plan));
}

result<std::vector<device_address>> readable_at(const memory_layout &l) {
  std::vector<bool> readable;
  for (const auto &list : l.access) {
    readable.push_back(std::any_of(list.begin(), list.end(), [](const access_grant &g) {
      return g.who == on_device(memory_layout::own_device) && g.mode != access_mode::none;
    }));
  }
  std::vector<device_address> at(l.pages.size());
  for (const memory_layout::place &p : l.places) {
    if (!at[p.page] && readable[p.access]) at[p.page] = p.at;
  }
  for (const memory_layout::place &p : l.places) {
    if (at[p.page]) continue;
    return make_error(errc::not_supported, "checkpoint::readable_at",
                  "the device may not read this page", p.at.value());
  }
  return at;
}

status check(const memory_layout &l, std::size_t granularity) {
  const auto no = [](const char *why, std::uint64_t value) {
    return make_error(errc::corrupt, "checkpoint::check", why, value);
  };
  for (std::size_t i = 0; i < l.blocks.size(); ++i) {
    const virtual_range r = l.blocks[i].range;
    if (!sane(r, granularity)) return no("a block is not of whole pages", r.begin.value());
    if (i != 0 && r.begin < l.blocks[i - 1].range.end()) {
      return no("blocks overlap, or are not in order", r.begin.value());
    }
  }
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    const std::size_t bytes = l.pages[i].bytes;
    if (bytes == 0 || bytes % granularity != 0) return no("a page has a wrong size", i);
  }
  std::vector<bool> used(l.pages.size());
  auto block = l.blocks.begin();
  device_address free_from;
  for (const memory_layout::place &p : l.places) {
    if (p.page >= l.pages.size() || p.access >= l.access.size()) {
      return no("a place refers to what is not there", p.at.value());
    }
    const virtual_range r{p.at, l.pages[p.page].bytes};
    if (!sane(r, granularity)) return no("a place is not aligned", p.at.value());
    while (block != l.blocks.end() && block->range.end() <= p.at) ++block;
    if (block == l.blocks.end() || !block->range.contains(r)) {
      return no("a place is in no block", p.at.value());
    }
    if (p.at < free_from) return no("places overlap, or are not in order", p.at.value());
    free_from = r.end();
    used[p.page] = true;
  }
  const auto unused = std::find(used.begin(), used.end(), false);
  if (unused != used.end()) {
    return no("a page is used nowhere", static_cast<std::uint64_t>(unused - used.begin()));
  }
  return {};
}

}  // namespace stillmap::checkpoint
