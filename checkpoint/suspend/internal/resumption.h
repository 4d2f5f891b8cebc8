// Maps new pages at the places of a suspended tag: at all of them, or at none.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/checkpoint/common/selection.h"

namespace stillmap::checkpoint {

// Threads: externally synchronised.
class resumption {
 public:
  resumption(const device &d, const selection &suspended, std::uint64_t id)
      : device_(d), suspended_(suspended), id_(id) {}

  // Maps new pages at every place that is still suspended. Failure: nothing changed, and no page is
  // kept.
  status map();
  // The pieces to load then, one for each page, at addresses that the device may write.
  const std::vector<piece> &contents() const { return contents_; }
  // Call one of them after map(): finish() when the contents are loaded, undo() to suspend all
  // places again.
  // Where the host has no memory for that, it is a background error.
  void finish() noexcept;
  void undo() noexcept;

  std::size_t places() const { return wanted_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct fresh_page {
    page_ptr page;
    device_address at;      // an address to write it at
    bool wanted = false;    // some place of it is still suspended
    bool writable = false;  // the device may write at `at`
  };
  status prepare();
  void find_places();
  status create_pages();
  status reserve_scratch();
  void plan_contents();

  const device &device_;
  const selection &suspended_;
  const std::uint64_t id_;
  std::vector<selection::place> wanted_;    // places that are still suspended
  std::vector<fresh_page> pages_;           // in the order of suspended_.pages
  std::shared_ptr<address_block> scratch_;  // addresses to write pages that are mapped read-only
  std::size_t read_only_bytes_ = 0;
  std::vector<piece> contents_;
  std::size_t bytes_ = 0;
};

}  // namespace stillmap::checkpoint
