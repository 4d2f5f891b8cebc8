// The fixture of tests of published memory: a device whose pages can be exported, and a holder in this process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "stillmap/checkpoint/publication/attached_memory.h"
#include "stillmap/checkpoint/publication/holder.h"
#include "stillmap/vmm/context.h"
#include "tests/support/buffer_test.h"
#include "tests/support/unique_name.h"

namespace stillmap::publication::testing {

using stillmap::testing::fails_with;
using stillmap::testing::get;
using stillmap::testing::holds;
using stillmap::testing::outcome;
using stillmap::testing::pattern;
using stillmap::testing::put;

// What another thread or process brings about, for 20 s at most.
inline bool eventually(const std::function<bool()> &is_so) {
  for (int i = 0; i < 4000; ++i) {
    if (is_so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

class publication_fixture : public stillmap::testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    if (!dev().capabilities().posix_fd_export) GTEST_SKIP() << "needs pages that can be exported";
    if (start_holder_) start();
  }
  void TearDown() override {
    holder_.reset();
    buffer_test::TearDown();
  }
  void start(holder_options options = {}) {
    holder_.reset();
    auto made = holder::create(address_, std::move(options));
    ASSERT_DONE(made);
    holder_.emplace(std::move(*made));
  }

  // This process has the addresses already.
  static attach_options elsewhere() {
    attach_options options;
    options.where = checkpoint::placement::anywhere;
    return options;
  }
  result<attached_memory> attach_elsewhere(const std::string &name = "model") const {
    return attach(dev(), address_, name, elsewhere());
  }
  result<published_memory> publish_tag(const std::string &name, const char *tag,
                                       const publish_options &options = {}) const {
    return publish(dev(), address_, name, std::vector<std::string>{tag}, options);
  }
  // Pages that can be published, with pattern(.., seed). `at`: an address that stays free, for what comes back to it.
  growable_buffer exportable(std::size_t pages, const char *tag, unsigned seed,
                             std::uint64_t at = 0) const {
    const auto pool = page_pool::create(dev(), {.exportable = handle_type::posix_fd});
    // Not as much as the device has: each reader reserves the same.
    auto out = growable_buffer::create(dev(), {.reserve_bytes = 2 * pages * page(),
                                               .tag = tag,
                                               .hint = device_address(at),
                                               .pools = {*pool}});
    EXPECT_TRUE(out->resize(pages * page()));
    EXPECT_TRUE(at == 0 || out->address() == device_address(at));
    put(dev(), out->address(), pattern(pages * page(), seed));
    return std::move(*out);
  }
  bool can_write(device_address at) const {
    const context_guard guard(driver(), dev().context());
    return driver().set_bytes_async(at, 1, 64, nullptr).has_value();
  }
  std::size_t readers_of(std::uint64_t generation) const {
    for (const held_publication &p : holder_->publications()) {
      if (p.generation == generation) return p.readers.size();
    }
    return SIZE_MAX;
  }

  const std::string address_ = '@' + stillmap::testing::unique_name("stillmap-publication");
  bool start_holder_ = true;
  std::optional<holder> holder_;
};

}  // namespace stillmap::publication::testing
