// Keeps calls apart that would take the memory of one tag from under each other: a copy of pages that
// another thread unmaps is a fault, which loses the context.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stillmap/vmm/device.h"

namespace stillmap::checkpoint {

enum class lease_kind {
  shared,     // reads the memory: any number at once
  exclusive,  // takes it away or brings it back: alone
};

// Owner of a lease of tags, for the time of one call. Threads: safe, also across objects and modules.
class tag_lease {
 public:
  // Errors: busy (another call has one of these tags: subject = the tag).
  static result<tag_lease> take(const device &d, std::span<const std::string> tags,
                                lease_kind kind);
  tag_lease(tag_lease &&o) noexcept
      : space_(o.space_), tags_(std::exchange(o.tags_, {})), kind_(o.kind_) {}
  tag_lease &operator=(tag_lease &&) = delete;
  ~tag_lease();

 private:
  tag_lease(const address_space *space, lease_kind kind) : space_(space), kind_(kind) {}
  const address_space *space_;  // of the device: the same for all of its handles
  std::vector<std::string> tags_;
  lease_kind kind_;
};

}  // namespace stillmap::checkpoint
