// The fixture of tests that create page pools; needs a device with VMM.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>

#include "stillmap/vmm/page_pool.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

class pool_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
  }
  std::shared_ptr<page_pool> make_pool(page_pool_options options = {}) const {
    auto made = page_pool::create(dev(), options);
    if (!made) throw std::runtime_error(made.error().message());
    return *made;
  }
  std::uint64_t free_pages(const page_pool &p) const { return p.stats().free.bytes() / page(); }
};

}  // namespace stillmap::testing
