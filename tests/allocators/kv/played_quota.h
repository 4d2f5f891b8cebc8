// A quota whose questions a test asks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "stillmap/allocators/kv/cache_offer.h"
#include "stillmap/vmm/memory_quota.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/support/buffer_test.h"

namespace stillmap::testing {

// One question at a time, which stays open until it is answered.
class played_quota final : public memory_quota {
 public:
  status reserve(std::uint64_t) override { return {}; }
  status release(std::uint64_t) override { return {}; }
  std::unique_ptr<reclaimer_registration> add_reclaimer(
      reclaim_kind kind, std::function<std::uint64_t(std::uint64_t)> reclaim) override {
    struct registration final : reclaimer_registration {
      explicit registration(std::function<std::uint64_t(std::uint64_t)> &f) : function(f) {}
      ~registration() override { function = nullptr; }
      std::function<std::uint64_t(std::uint64_t)> &function;
    };
    auto &entry = reclaimers_[static_cast<std::size_t>(kind)];
    entry = std::move(reclaim);
    return std::make_unique<registration>(entry);
  }
  result<std::uint64_t> retry_reclaim() override {
    if (fails) return make_error(errc::busy, "the quota is locked");
    if (!bytes_) return 0;
    std::uint64_t released = 0;
    bool later = false;
    for (std::size_t k = 0; k <= static_cast<std::size_t>(kind_) && released < *bytes_; ++k) {
      const std::uint64_t one = reclaimers_[k] ? reclaimers_[k](*bytes_ - released) : 0;
      later = later || one == reclaim_later;
      released += one == reclaim_later ? 0 : one;
    }
    if (!later || released >= *bytes_) {
      answered = released;
      bytes_.reset();
    }
    return released;
  }
  void ask(reclaim_kind kind, std::uint64_t bytes) {
    kind_ = kind;
    bytes_ = bytes;
    answered.reset();
    (void)retry_reclaim();
  }
  void withdraw() { bytes_.reset(); }

  std::optional<std::uint64_t> answered;
  bool fails = false;

 private:
  std::array<std::function<std::uint64_t(std::uint64_t)>, reclaim_kinds> reclaimers_;
  std::optional<std::uint64_t> bytes_;
  reclaim_kind kind_{};
};

// What offers memory to a quota that the test plays.
class offer_test : public buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_VMM();
    STILLMAP_NEEDS_HOSTCUDA();
  }
  void TearDown() override {
    accept_background_errors();
    buffer_test::TearDown();
  }
  std::unique_ptr<kv::cache_offer> make_offer() const {
    auto made = kv::cache_offer::create(quota_);
    return made ? std::move(*made) : nullptr;
  }
  // Of an arena.
  std::shared_ptr<page_pool> make_pool() const {
    const auto pool = page_pool::create(dev(), {.keep_free = 0, .quota = quota_});
    return pool ? *pool : nullptr;
  }
  // Bytes of a page group, which is a page in each of two ranges.
  std::size_t group() const { return 2 * page(); }

  const std::shared_ptr<played_quota> quota_ = std::make_shared<played_quota>();
};

}  // namespace stillmap::testing
