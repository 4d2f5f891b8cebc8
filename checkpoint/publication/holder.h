// Keeps published memory for its readers, also when its publisher has ended. docs/publication.md
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "stillmap/checkpoint/publication/holder_options.h"
#include "stillmap/checkpoint/publication/publication.h"

namespace stillmap::publication {

// Keeps memory while it exists, with one sleeping thread, and one for each client while it is served. It
// uses no driver, no GPU and no context: it has one descriptor for each page, and the driver keeps a page
// as long as a descriptor of it is open.
// Threads: safe.
// Fork:    the child has no holder, and none of its descriptors: its copy can be destroyed, which does
//          nothing.
class holder {
 public:
  // Listens at `address`: a path, or '@' and an abstract name. Replaces a socket that a dead process has
  // left behind.
  // Errors: as control::server::create.
  static result<holder> create(const std::string &address, holder_options options = {});
  holder(holder &&) noexcept;
  holder &operator=(holder &&) = delete;
  // Ends all leases. What no process has mapped is freed.
  ~holder();

  const std::string &address() const;
  // By name and generation. Allocates host memory: may throw std::bad_alloc.
  std::vector<held_publication> publications() const;

 private:
  class core;
  explicit holder(std::unique_ptr<core> c) noexcept;
  std::unique_ptr<core> core_;
};

}  // namespace stillmap::publication
