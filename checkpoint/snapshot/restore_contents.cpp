#include "stillmap/checkpoint/snapshot/restore_contents.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>

#include "stillmap/checkpoint/base/file_error.h"
#include "stillmap/checkpoint/common/published_blocks.h"
#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/checkpoint/common/wait_idle.h"
#include "stillmap/checkpoint/snapshot/internal/contents_reader.h"
#include "stillmap/checkpoint/snapshot/layout_manifest.h"
#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::snapshot {
namespace {

using checkpoint::memory_layout;

tl::unexpected<error> not_as_saved(errc c, const char *reason, device_address at,
                                   error_detail d = {}) {
  const error e = make_error(c, reason, at.value(), 0, error_unit::address).value();
  return tl::unexpected(e.with(std::move(d)));
}

// Finds the pages of this process that are mapped where a layout has its own.
class mapped_pages {
 public:
  mapped_pages(const device &d, const memory_layout &l)
      : device_(d), layout_(l), pages_(l.pages.size()), at_(l.pages.size()) {}

  status find() {
    if (!device_.capabilities().vmm) {
      return make_error(errc::not_supported, "this device cannot map pages at addresses");
    }
    auto place = layout_.places.begin();
    for (const memory_layout::block &b : layout_.blocks) {
      const std::vector<mapping_record> here = device_.space().mappings(b.range);
      auto record = here.begin();
      for (; place != layout_.places.end() && b.range.contains(place->at); ++place) {
        record = std::find_if(record, here.end(),
                              [&](const auto &m) { return m.range.end() > place->at; });
        if (record == here.end() || record->range.begin > place->at) return not_mapped(place->at);
        STILLMAP_RETURN_IF_ERROR(add(*place, b.tag, *record));
      }
    }
    STILLMAP_RETURN_IF_ERROR(check_writable());
    return check_published();
  }

  // Whether only these places have the pages.
  status check_unshared() const {
    std::vector<std::uint32_t> places(pages_.size());
    for (const memory_layout::place &p : layout_.places) ++places[p.page];
    for (const memory_layout::place &p : layout_.places) {
      if (pages_[p.page].page.use_count() == places[p.page] + 1) continue;
      return not_as_saved(errc::busy,
                          "a page is also used outside of the image's memory, where its contents "
                          "would change, too",
                          p.at);
    }
    return {};
  }

  // By page, an address where the device may write.
  const std::vector<device_address> &at() const { return at_; }

 private:
  struct found_page {
    page_ptr page;
    device_address first;
  };

  static tl::unexpected<error> not_mapped(device_address at) {
    return not_as_saved(errc::invalid_argument,
                        "nothing is mapped in this process at an address of the image", at);
  }

  status add(const memory_layout::place &p, const std::string &tag, const mapping_record &m) {
    if (m.state == mapping_state::suspended) {
      return not_as_saved(errc::busy, "the memory is suspended: resume it first", p.at);
    }
    if (m.state != mapping_state::mapped || !m.backing) return not_mapped(p.at);
    if (!block_ || !block_->range().contains(p.at)) block_ = device_.space().block_at(p.at);
    if (!block_ || block_->tag() != tag) {
      return not_as_saved(errc::invalid_argument,
                          "the memory at an address of the image has another tag", p.at,
                          {.found = block_ ? block_->tag() : std::string(), .expected = tag});
    }
    const std::size_t bytes = layout_.pages[p.page].bytes;
    if (m.range != virtual_range{p.at, bytes}) {
      return not_as_saved(errc::invalid_argument,
                          "the page at an address of the image has another size or place", p.at,
                          {.found = std::to_string(m.range.bytes) + " bytes",
                           .expected = std::to_string(bytes) + " bytes"});
    }
    if (m.backing->imported()) {
      return not_as_saved(errc::not_supported, "another process has the memory, too", p.at);
    }
    found_page &page = pages_[p.page];
    if (!page.page) page = {m.backing, p.at};
    const auto [known, fresh] = known_.try_emplace(m.backing->id(), p.page);
    if (page.page != m.backing || known->second != p.page) {
      return not_as_saved(errc::invalid_argument,
                          "the page at an address of the image is shared with other addresses than "
                          "when it was saved",
                          p.at);
    }
    const bool writable = std::any_of(m.access.begin(), m.access.end(), [&](const auto &g) {
      return g.location == on_device(device_.ordinal()) && g.mode == access_mode::read_write;
    });
    if (writable && !at_[p.page]) at_[p.page] = p.at;
    return {};
  }

  status check_writable() const {
    const auto none = std::find(at_.begin(), at_.end(), device_address());
    if (none == at_.end()) return {};
    return not_as_saved(errc::not_supported, "the device may not write this page",
                        pages_[static_cast<std::size_t>(none - at_.begin())].first);
  }

  status check_published() const {
    if (layout_.published.empty()) return {};
    const std::vector<block_record> blocks = device_.space().blocks();
    for (const checkpoint::published_reference &r : layout_.published) {
      const auto b = std::find_if(blocks.begin(), blocks.end(), [&](const block_record &x) {
        return x.range.begin == r.range.begin;
      });
      const auto here = b == blocks.end() ? std::nullopt : checkpoint::find_published(device_, *b);
      if (!here || here->id != r.id || here->block != r.block) {
        return not_as_saved(errc::invalid_argument,
                            "published memory of the image is not attached in this process",
                            r.range.begin, {.expected = r.name});
      }
      for (const mapping_record &m : device_.space().mappings(r.range)) {
        if (m.state == mapping_state::mapped && m.backing->imported()) continue;
        return not_as_saved(errc::not_supported,
                            "a page of published memory was made writable here, and the image has "
                            "no contents of it: leave out its tag",
                            m.range.begin);
      }
    }
    return {};
  }

  const device &device_;
  const memory_layout &layout_;
  std::vector<found_page> pages_;                           // by page of the layout
  std::vector<device_address> at_;                          // likewise
  std::shared_ptr<address_block> block_;                    // of the last place
  std::unordered_map<std::uint64_t, std::uint32_t> known_;  // by page id: the page of the layout
};

std::vector<std::string> tags_of(const memory_layout &l) {
  std::vector<std::string> tags;
  for (const memory_layout::block &b : l.blocks) tags.push_back(b.tag);
  std::sort(tags.begin(), tags.end());
  tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
  return tags;
}

status move_block(memory_layout &l, device_address to) {
  if (l.blocks.size() != 1 || !l.published.empty()) {
    return make_error(errc::invalid_argument,
                      "only the memory of an image with one block can be written elsewhere",
                      l.blocks.size() + l.published.size(), 1, error_unit::items);
  }
  const device_address from = std::exchange(l.blocks.front().range.begin, to);
  for (memory_layout::place &p : l.places) p.at = to + (p.at.value() - from.value());
  return {};
}

status write_contents(const device &d, const image::reader &from, const selected_memory &wanted,
                      const mapped_pages &to, const restore_contents_options &options) {
  restore_options copies;
  copies.threads = options.threads;
  copies.on_progress = options.on_progress;
  std::atomic<bool> writes{false};
  const status s = read_contents(d, from, wanted, to.at(), copies, &writes);
  if (s || !writes) return s;
  return tl::unexpected(s.error().with(
      {.cause =
           "the memory may be overwritten in part: its contents are unspecified until an image "
           "is restored"}));
}

result<restored_contents> restore_all(const device &d, const image::reader &from,
                                      const restore_contents_options &options) {
  STILLMAP_ASSIGN_OR_RETURN(selected_memory wanted, select_memory(from.manifest(), options.tags));
  if (options.moved_to) STILLMAP_RETURN_IF_ERROR(move_block(wanted.layout, *options.moved_to));
  const std::vector<std::string> tags = tags_of(wanted.layout);
  STILLMAP_ASSIGN_OR_RETURN(
      const auto lease, checkpoint::tag_lease::take(d, tags, checkpoint::lease_kind::exclusive));
  STILLMAP_RETURN_IF_ERROR(checkpoint::wait_until_idle(d, options.idle));
  for (const memory_layout::block &b : wanted.layout.blocks) {
    STILLMAP_RETURN_IF_ERROR(d.space().collect_range(b.range));
  }
  mapped_pages here(d, wanted.layout);
  STILLMAP_RETURN_IF_ERROR(here.find());
  STILLMAP_RETURN_IF_ERROR(here.check_unshared());
  if (options.verify) {
    image::verify_options whole;
    whole.threads = static_cast<unsigned>(options.threads);
    whole.cancel = options.cancel;
    STILLMAP_RETURN_IF_ERROR(from.verify(whole));
  }
  if (options.cancel.stop_requested()) {
    return make_error(errc::operation_canceled, "stop requested");
  }
  STILLMAP_RETURN_IF_ERROR(write_contents(d, from, wanted, here, options));
  return restored_contents{from.superblock().image, wanted.layout.pages.size(),
                           wanted.layout.bytes()};
}

}  // namespace

status check_mapped_as_saved(const device &d, const image::reader &from,
                             std::span<const std::string> tags) {
  return with_host_memory("snapshot::check_mapped_as_saved", [&]() -> status {
    STILLMAP_ASSIGN_OR_RETURN(const selected_memory wanted, select_memory(from.manifest(), tags));
    return checkpoint::in_file(mapped_pages(d, wanted.layout).find(), from.path());
  });
}

result<restored_contents> restore_contents(const device &d, const image::reader &from,
                                           const restore_contents_options &options) {
  return with_host_memory("snapshot::restore_contents", [&] {
    return checkpoint::in_file(restore_all(d, from, options), from.path());
  });
}

result<restored_contents> restore_contents(const device &d, const std::string &path,
                                           const restore_contents_options &options) {
  return with_host_memory("snapshot::restore_contents", [&]() -> result<restored_contents> {
    STILLMAP_ASSIGN_OR_RETURN(const auto from, image::reader::open(path, options.image));
    return restore_contents(d, from, options);
  });
}

}  // namespace stillmap::snapshot
