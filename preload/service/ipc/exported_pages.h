// The pages under a block that another process opens.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "preload/service/ipc/exported_blocks.h"
#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/vmm/address_space.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/page.h"

namespace stillmap::preload {

// Keeps the block while it lives; and no call suspends memory with its tag, because the other process would keep the
// old pages.
// Threads: externally synchronised.
class exported_pages {
 public:
  // Errors: busy (the memory is suspended, or being suspended), not_supported (a page was not created exportable);
  //         throws std::bad_alloc.
  // Cost:   no driver call.
  static result<exported_pages> create(std::unique_ptr<exported_blocks::lease> block);

  const device &on() const { return block_->heap().device(); }
  std::size_t page_bytes() const { return pages_.front()->bytes(); }
  std::size_t count() const { return pages_.size(); }

  // Descriptors of the pages from `first` on: at most `most`, and at least one. Fewer where the process may open no
  // more files.
  // Errors: the driver's, for the first one; throws std::bad_alloc.
  // Cost:   one call each, and the context switch.
  result<std::vector<owned_fd>> export_fds(std::size_t first, std::size_t most) const;

 private:
  exported_pages(std::unique_ptr<exported_blocks::lease> block, checkpoint::tag_lease tag)
      : block_(std::move(block)), tag_(std::move(tag)) {}
  status add(const mapping_record &m);

  std::unique_ptr<exported_blocks::lease> block_;
  checkpoint::tag_lease tag_;
  std::vector<page_ptr> pages_;  // go first
};

}  // namespace stillmap::preload
