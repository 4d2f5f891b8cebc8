// Device memory that passes between processes as file descriptors of its pages: how stillmap.torch sends tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "stillmap/checkpoint/common/tag_lease.h"
#include "stillmap/vmm/base/owned_fd.h"
#include "stillmap/vmm/device.h"
#include "stillmap/vmm/page.h"
#include "stillmap/vmm/reservation.h"

namespace stillmap::python {

// The pages under a range of memory that another process may map. While the object lives, no call
// suspends, hands off or migrates memory with the tag: the other processes would keep the old pages.
// Requires: the owner of the memory keeps it allocated.
// Threads:  safe, once created.
class exported_pages {
 public:
  // Nothing where the range is not Stillmap's memory.
  // Errors: not_supported (a page was not created exportable, is another process's, or the device cannot map
  //         pages: value = its address), busy (the memory is suspended, or being suspended), host memory.
  // Cost:   no driver call.
  static result<std::optional<exported_pages>> create(const device &d, virtual_range range);

  const device &on() const { return device_; }
  const std::string &tag() const { return tag_; }
  std::size_t page_bytes() const { return pages_.front()->bytes(); }
  std::size_t offset() const { return offset_; }  // of the range in the first page
  const std::vector<page_ptr> &pages() const { return pages_; }

  // Descriptors of the pages from `first` on: at most `most`, and at least one. Fewer where the process may open
  // no more files.
  // Errors: the driver's, for the first one. Cost: one call each, and the context switch.
  result<std::vector<owned_fd>> export_fds(std::size_t first, std::size_t most) const;

 private:
  exported_pages(device d, std::string tag, checkpoint::tag_lease lease)
      : device_(std::move(d)), tag_(std::move(tag)), lease_(std::move(lease)) {}

  device device_;
  std::string tag_;
  checkpoint::tag_lease lease_;
  std::size_t offset_ = 0;
  std::vector<page_ptr> pages_;
};

// Pages of another process, mapped one after the other at an address of their own.
// Threads: externally synchronised.
class imported_pages {
 public:
  // Reserves the addresses. Errors: as reservation::create and page_pool::create.
  static result<std::unique_ptr<imported_pages>> create(const device &d, std::size_t page_bytes,
                                                        std::size_t count);
  ~imported_pages();
  imported_pages(const imported_pages &) = delete;
  imported_pages &operator=(const imported_pages &) = delete;

  // Imports the next page. The caller keeps the descriptor.
  status add(int fd);
  // Maps all, for this device and those that can access it. Errors: invalid_argument (pages are missing), those of
  // address_space::apply; failure: nothing is mapped.
  status map();
  // Waits until no queued work can access the memory, unmaps it, and gives the addresses up. Errors: busy (a stream
  // captures a graph: the memory stays), the driver's.
  status close();

  const device &on() const { return device_; }
  virtual_range range() const { return addresses_.range(); }

 private:
  imported_pages(device d, reservation r, std::shared_ptr<page_pool> pool, std::size_t count)
      : device_(std::move(d)), addresses_(std::move(r)), pool_(std::move(pool)), count_(count) {}

  device device_;
  reservation addresses_;
  std::shared_ptr<page_pool> pool_;
  std::size_t count_;
  std::vector<page_ptr> pages_;
  bool mapped_ = false;
};

void bind_page_sharing(nanobind::module_ &m);

}  // namespace stillmap::python
