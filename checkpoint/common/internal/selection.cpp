#include "stillmap/checkpoint/common/internal/selection.h"

#include <atomic>
#include <unordered_map>

namespace stillmap::checkpoint {
namespace {

constexpr const char *op = "checkpoint::select";

class selecting {
 public:
  selecting(const device &d, std::string_view tag, bool imports)
      : device_(d), tag_(tag), imports_(imports) {}

  result<selection> run() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, op, "this device cannot map pages at addresses");
    }
    for (const block_record &b : device_.space().blocks()) {
      if (b.tag != tag_) continue;
      if (status s = device_.space().settle(b.range); !s) return tl::unexpected(s.error());
      if (status s = take(b.range); !s) return tl::unexpected(s.error());
    }
    if (out_.places.empty()) {
      if (suspended_) return make_error(errc::busy, op, "all memory of this tag is suspended");
      return make_error(errc::invalid_argument, op, "no memory that is mapped has this tag");
    }
    if (status s = check_alone(); !s) return tl::unexpected(s.error());
    return std::move(out_);
  }

 private:
  status take(virtual_range block) {
    bool inside = false;  // the place before is of this block too
    for (mapping_record &m : device_.space().mappings(block)) {
      if (m.state == mapping_state::suspended) {
        suspended_ = true;
        continue;
      }
      if (!m.backing) continue;  // cannot be: the block is reserved
      if (!imports_ && m.backing->imported()) {
        return make_error(errc::not_supported, op, "the memory is another process's",
                      m.range.begin.value());
      }
      const auto [at, first] = known_.try_emplace(m.backing->id(), out_.pages.size());
      if (first) {
        out_.pages.push_back({m.range.bytes, m.backing.pool(), out_.bytes});
        holds_.push_back({std::move(m.backing), m.range.begin, 0});
        extend(out_.contents, {m.range, out_.bytes}, inside);
        out_.bytes += m.range.bytes;
      }
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
      return make_error(errc::busy, op, "a page is used outside of what has this tag",
                    h.at.value(), h.page->bytes());
    }
    return {};
  }

  struct hold {
    page_ptr page;
    device_address at;
    std::uint32_t places;
  };
  const device &device_;
  std::string_view tag_;
  bool imports_;
  selection out_;
  bool suspended_ = false;
  std::unordered_map<std::uint64_t, std::size_t> known_;  // by id of the page
  std::vector<hold> holds_;
};

}  // namespace

std::uint64_t next_suspension() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void extend(std::vector<virtual_range> &runs, virtual_range by, bool same_block) {
  if (same_block && !runs.empty() && runs.back().end() == by.begin) {
    runs.back().bytes += by.bytes;
  } else {
    runs.push_back(by);
  }
}

void extend(std::vector<piece> &pieces, piece by, bool same_block) {
  piece *const last = pieces.empty() ? nullptr : &pieces.back();
  if (same_block && last != nullptr && last->range.end() == by.range.begin &&
      last->offset + last->range.bytes == by.offset) {
    last->range.bytes += by.range.bytes;
  } else {
    pieces.push_back(by);
  }
}

result<selection> select(const device &d, std::string_view tag, bool imports) {
  return selecting(d, tag, imports).run();
}

}  // namespace stillmap::checkpoint
