// Physical pages on their way to another process of this machine, as file descriptors. docs/handoff.md
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/common/layout.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/page_pool.h"

namespace stillmap::checkpoint {

// Whether all pages of the layout can be exported: checked before anything is sent, instead of failing
// in the middle.
// Errors: not_supported (a page was not created exportable as a file descriptor: value = its address).
status check_exportable(const memory_layout &l);

// Exports pages in their order and calls send(descriptors) for at most `batch` of them at a time, which limits
// the number of open descriptors: those of a batch are closed before the next.
// Errors: the driver's, those of `send`. Cost: one export a page, and the context switch for each batch.
status export_pages(const device &d, std::span<const page_ptr> pages, std::size_t batch,
                    const std::function<status(std::span<const int>)> &send);

// Imports the pages of a layout, in its order, and adopts them in pools of their kinds.
// Threads: externally synchronised.
class page_importer {
 public:
  explicit page_importer(const device &d) : device_(d) {}

  // Imports the next pages of `l`, one for each descriptor, which the caller keeps.
  // Requires: no more descriptors than pages of `l` that are missing.
  // Errors:   corrupt (a page differs from its description: value = its index), the driver's.
  // Cost:     one import and one query a page, and the context switch.
  status import(const memory_layout &l, std::span<const owned_fd> fds);
  const std::vector<page_ptr> &pages() const { return pages_; }
  // Gives up the references to them.
  std::vector<page_ptr> take() { return std::exchange(pages_, {}); }

  // The pool of a kind of page; it creates more of the kind where the memory grows.
  result<std::shared_ptr<page_pool>> pool_of(std::size_t bytes,
                                             const physical_properties &properties);

 private:
  status import_page(const owned_fd &fd, const memory_layout::page &page);

  device device_;
  std::vector<std::shared_ptr<page_pool>> pools_;
  std::vector<page_ptr> pages_;
};

}  // namespace stillmap::checkpoint
