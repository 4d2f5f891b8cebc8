// The implementation of attached_memory.
#pragma once

#include <optional>
#include <utility>

#include "stillmap/checkpoint/base/socket_channel.h"
#include "stillmap/checkpoint/common/page_transfer.h"
#include "stillmap/checkpoint/common/restored_memory.h"
#include "stillmap/checkpoint/publication/manifest.h"

namespace stillmap::publication {

class attached_core {
 public:
  attached_core(checkpoint::socket_channel lease, std::uint64_t generation, manifest m,
                checkpoint::page_importer pages, checkpoint::restored_memory memory)
      : lease_(std::move(lease)),
        generation_(generation),
        manifest_(std::move(m)),
        pages_(std::move(pages)),
        memory_(std::move(memory)) {}

  std::uint64_t generation() const { return generation_; }
  const manifest &published() const { return manifest_; }
  const checkpoint::restored_memory &memory() const { return memory_; }
  std::size_t private_bytes() const { return private_bytes_; }
  std::size_t shared_bytes() const {
    return lease_ ? memory_.layout().bytes() - private_bytes_ : 0;
  }
  status make_writable(virtual_range range, stream_ref stream);
  status release(const fence &idle);

 private:
  struct shared_page {
    std::size_t page = 0;                // of the layout
    std::vector<device_address> places;  // all of them
  };
  result<std::vector<shared_page>> shared_pages(virtual_range range) const;

  std::optional<checkpoint::socket_channel> lease_;  // none: released
  const std::uint64_t generation_;
  const manifest manifest_;
  checkpoint::page_importer pages_;  // its pools create the copies; no page is kept
  checkpoint::restored_memory memory_;
  std::vector<bool> private_;  // by page of the layout; empty: none
  std::size_t private_bytes_ = 0;
};

}  // namespace stillmap::publication
