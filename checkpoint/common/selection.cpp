#include "stillmap/checkpoint/common/selection.h"

#include <atomic>
#include <unordered_map>

#include "stillmap/vmm/base/operation.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::checkpoint {
namespace {

class selector {
 public:
  selector(const device &d, std::string_view tag, bool imports)
      : device_(d), tag_(tag), imports_(imports) {}

  result<selection> run() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, "this device cannot map pages at addresses");
    }
    for (const block_record &b : device_.space().blocks()) {
      if (b.tag != tag_) continue;
      STILLMAP_RETURN_IF_ERROR(device_.space().collect_range(b.range));
      STILLMAP_RETURN_IF_ERROR(add_block(b.range));
    }
    if (out_.places.empty()) {
      if (suspended_) return fail(errc::busy, "the memory is suspended already");
      return released_ ? fail(errc::busy, "the memory has been released")
                       : fail(errc::invalid_argument, "no mapped memory has this tag");
    }
    STILLMAP_RETURN_IF_ERROR(check_unshared());
    return std::move(out_);
  }

 private:
  status add_block(virtual_range block) {
    bool same_block = false;  // as the previous place
    for (mapping_record &m : device_.space().mappings(block)) {
      suspended_ = suspended_ || m.state == mapping_state::suspended;
      released_ = released_ || m.state == mapping_state::released;
      if (!m.backing) continue;  // never so in a reservation
      if (!imports_ && m.backing->imported()) {
        return fail(errc::not_supported, "another process has the memory, too", m.range.begin);
      }
      const auto [at, first] = known_.try_emplace(m.backing->id(), out_.pages.size());
      if (first) {
        out_.pages.push_back({m.range.bytes, m.backing.pool(), out_.bytes});
        holds_.push_back({std::move(m.backing), m.range.begin, 0});
        extend(out_.contents, {m.range, out_.bytes}, same_block);
        out_.bytes += m.range.bytes;
      }
      out_.places.push_back({m.range.begin, at->second});
      ++holds_[at->second].places;
      extend(out_.ranges, m.range, same_block);
      same_block = true;
    }
    return {};
  }

  // A page with another reference would keep its memory, and be duplicated by a restore.
  status check_unshared() const {
    for (const hold &h : holds_) {
      if (h.page.use_count() == h.places + 1) continue;
      return fail(errc::busy, "a page is also used outside of this tag", h.at);
    }
    return {};
  }

  tl::unexpected<error> fail(errc c, const char *reason, device_address at = {}) const {
    const error e = make_error(c, reason, at.value(), 0, error_unit::address).value();
    return tl::unexpected(e.about("tag " + std::string(tag_)));
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
  bool suspended_ = false, released_ = false;
  std::unordered_map<std::uint64_t, std::size_t> known_;  // by page id: index in pages and holds_
  std::vector<hold> holds_;
};

}  // namespace

std::uint64_t next_suspension_id() {
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
  const operation_scope scope("checkpoint::select");
  return selector(d, tag, imports).run();
}

}  // namespace stillmap::checkpoint
