#include "preload/service/ipc/exported_pages.h"

#include <algorithm>
#include <span>
#include <string>

#include "stillmap/vmm/base/try.h"
#include "stillmap/vmm/context.h"

namespace stillmap::preload {

result<exported_pages> exported_pages::create(std::unique_ptr<exported_blocks::lease> block) {
  const address_space &space = block->heap().device().space();
  const virtual_range range = block->block();
  const auto reserved = space.block_at(range.begin);
  const std::string tag = reserved ? reserved->tag() : std::string();
  STILLMAP_ASSIGN_OR_RETURN(auto tag_lease,
                            checkpoint::tag_lease::take(block->heap().device(), {&tag, 1},
                                                        checkpoint::lease_kind::shared));
  exported_pages made(std::move(block), std::move(tag_lease));
  const std::vector<mapping_record> records = space.mappings(range);
  for (const mapping_record &m : records) STILLMAP_RETURN_IF_ERROR(made.add(m));
  if (records.empty() || records.front().range.begin > range.begin ||
      records.back().range.end() < range.end() ||
      records.back().range.end() - records.front().range.begin !=
          made.count() * made.page_bytes()) {
    return make_error(errc::busy, "a part of the block is not mapped", range.begin.value(), 0,
                      error_unit::address);
  }
  return made;
}

status exported_pages::add(const mapping_record &m) {
  if (m.state != mapping_state::mapped || !m.backing) {
    return make_error(errc::busy, "the memory is suspended", m.range.begin.value(), 0,
                      error_unit::address);
  }
  if (m.backing->properties().exportable != handle_type::posix_fd ||
      m.range.bytes != m.backing->bytes() ||
      (!pages_.empty() && m.backing->bytes() != page_bytes())) {
    return make_error(errc::not_supported, "the page was not created for other processes",
                      m.range.begin.value(), 0, error_unit::address);
  }
  pages_.push_back(m.backing);
  return {};
}

result<std::vector<owned_fd>> exported_pages::export_fds(std::size_t first,
                                                         std::size_t most) const {
  const context_guard guard(on().driver(), on().context());
  STILLMAP_RETURN_IF_ERROR(guard.entered());
  std::vector<owned_fd> fds;
  const std::size_t end = first + std::min(most, count() - first);
  fds.reserve(end - first);
  for (std::size_t i = first; i < end; ++i) {
    const auto fd = on().driver().export_fd(pages_[i]->handle());
    if (!fd && fds.empty()) return tl::unexpected(fd.error());
    if (!fd) break;
    fds.emplace_back(*fd);
  }
  return fds;
}

}  // namespace stillmap::preload
