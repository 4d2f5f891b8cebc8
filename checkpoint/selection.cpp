#include "stillmap/checkpoint/selection.h"

#include <algorithm>
#include <unordered_map>

namespace stillmap::checkpoint {
namespace {

constexpr const char *op = "checkpoint::select";

// A run goes on where addresses do, within one reservation.
void extend(std::vector<virtual_range> &runs, virtual_range by, bool same_block) {
  if (same_block && !runs.empty() && runs.back().end() == by.begin) {
    runs.back().bytes += by.bytes;
  } else {
    runs.push_back(by);
  }
}

class selecting {
 public:
  selecting(const device &d, std::string_view tag) : device_(d), tag_(tag) {}

  result<selection> run() {
    if (!device_.can().vmm) {
      return refuse(condition::not_supported, op, "this device cannot map pages at addresses");
    }
    for (const block_record &b : device_.space().blocks()) {
      if (b.tag != tag_) continue;
      if (status s = device_.space().settle(b.range); !s) return tl::unexpected(s.error());
      if (status s = take(b.range); !s) return tl::unexpected(s.error());
    }
    if (out_.places.empty()) {
      if (suspended_) return refuse(condition::busy, op, "all memory of this tag is suspended");
      return refuse(condition::invalid_argument, op, "no memory that is mapped has this tag");
    }
    if (status s = check_alone(); !s) return tl::unexpected(s.error());
    return std::move(out_);
  }

 private:
  status take(virtual_range block) {
    bool inside = false;  // the place before is of this block too
    bool copying = false;
    for (mapping_record &m : device_.space().mappings(block)) {
      if (m.state == mapping_state::suspended) {
        suspended_ = true;
        continue;
      }
      if (!m.backing) continue;  // cannot be: the block is reserved
      if (m.backing->imported()) {
        return refuse(condition::not_supported, op, "the memory is another process's",
                      m.range.begin.value());
      }
      const auto [at, first] = known_.try_emplace(m.backing->id(), out_.pages.size());
      const bool writable = writes(m, device_.ordinal());
      if (first) {
        out_.pages.push_back(
            {m.range.bytes, m.backing.home(), out_.bytes, m.range.begin, writable});
        holds_.push_back({std::move(m.backing), m.range.begin, 0});
        if (copying && out_.contents.back().range.end() == m.range.begin) {
          out_.contents.back().range.bytes += m.range.bytes;
        } else {
          out_.contents.push_back({m.range, out_.bytes});
        }
        out_.bytes += m.range.bytes;
      } else if (writable && !out_.pages[at->second].writable) {
        out_.pages[at->second].at = m.range.begin;
        out_.pages[at->second].writable = true;
      }
      copying = first;
      out_.places.push_back({m.range.begin, at->second});
      ++holds_[at->second].places;
      extend(out_.ranges, m.range, inside);
      inside = true;
    }
    return {};
  }

  // A page that somebody else has would keep its memory, and come back as two.
  status check_alone() const {
    for (const hold &h : holds_) {
      if (h.page.use_count() == h.places + 1) continue;
      return refuse(condition::busy, op, "a page is used outside of what has this tag",
                    h.at.value(), h.page->bytes());
    }
    return {};
  }

  struct hold {
    page_ref page;
    device_address at;
    std::uint32_t places;
  };
  const device &device_;
  std::string_view tag_;
  selection out_;
  bool suspended_ = false;
  std::unordered_map<std::uint64_t, std::size_t> known_;  // by id of the page
  std::vector<hold> holds_;
};

}  // namespace

bool writes(const mapping_record &m, int device) {
  return std::any_of(m.access.begin(), m.access.end(), [&](const access_grant &g) {
    return g.mode == access_mode::read_write && g.who == on_device(device);
  });
}

result<selection> select(const device &d, std::string_view tag) {
  return selecting(d, tag).run();
}

}  // namespace stillmap::checkpoint
