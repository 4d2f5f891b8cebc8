// Suspended places get pages again: all of them, or none. Internal to suspender.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "stillmap/checkpoint/common/internal/selection.h"

namespace stillmap::checkpoint {

// Threads: externally synchronised.
class resumption {
 public:
  resumption(const device &d, const selection &what, std::uint64_t id)
      : device_(d), what_(what), id_(id) {}

  // Maps new pages at every place that is still suspended. Failure: nothing has changed.
  status map();
  // What to copy then, so that every page gets its bytes: at addresses that the device may write.
  const std::vector<piece> &contents() const { return contents_; }
  // Either the contents are there, or all is suspended again.
  void finish() noexcept;
  void undo() noexcept;

  std::size_t places() const { return wanted_.size(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct fresh_page {
    page_ptr page;
    device_address at;      // where to write it
    bool wanted = false;    // at some place
    bool writable = false;  // `at` is
  };
  void find_places();
  status get_pages();
  status get_scratch();
  void plan_contents();

  const device &device_;
  const selection &what_;
  const std::uint64_t id_;
  std::vector<selection::place> wanted_;    // places that are still suspended
  std::vector<virtual_range> ranges_;       // those, as runs within one block
  std::vector<fresh_page> pages_;           // as what_.pages
  std::shared_ptr<address_block> scratch_;  // for pages that nobody may write where they are wanted
  std::size_t read_only_ = 0;
  std::vector<piece> contents_;
  std::size_t bytes_ = 0;
};

}  // namespace stillmap::checkpoint
