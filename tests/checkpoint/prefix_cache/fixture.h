// An arena with a prefix cache, and what is expected of one that comes back.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/checkpoint/prefix_cache/prefix_cache.h"
#include "tests/support/unique_name.h"
#include "tests/system/kv/kv_test.h"

namespace stillmap::testing {

class prefix_cache_fixture : public kv_test {
 protected:
  using entry = prefix_cache::entry;

  // Keys of any bytes.
  static std::vector<entry> table(std::span<const kv::block_id> ids) {
    std::vector<entry> out;
    for (const kv::block_id b : ids) {
      out.push_back({b, std::string("\0\xff", 2) + std::to_string(b * 7919)});
    }
    return out;
  }
  // Every third of 24 blocks, the last one first; one of them is used.
  std::vector<entry> fill_cache(kv::block_arena &a) const {
    const auto ids = filled_blocks(a, 24);
    std::vector<kv::block_id> cached, others;
    for (const kv::block_id b : ids) (b % 3 == 0 ? cached : others).push_back(b);
    EXPECT_TRUE(a.release(std::span(cached).subspan(1), kv::block_arena::contents::keep));
    EXPECT_TRUE(a.release(others));
    std::reverse(cached.begin(), cached.end());
    return table(cached);
  }
  void expect_cached(const kv::block_arena &a, const std::vector<entry> &entries) const {
    EXPECT_EQ(a.stats().cached, entries.size());
    EXPECT_EQ(a.stats().used, 0u);
    for (const entry &e : entries) EXPECT_TRUE(is_filled(a, e.block)) << "block " << e.block;
  }
  static void empty(kv::block_arena &a) {
    std::vector<kv::block_id> evicted;
    ASSERT_TRUE(a.evict(SIZE_MAX, evicted));
    ASSERT_TRUE(a.trim());
    EXPECT_EQ(a.stats().mapped_bytes, 0u);
  }

  static handoff::handoff_options anywhere() {
    handoff::handoff_options o;
    o.timeout = std::chrono::seconds(30);
    o.where = checkpoint::placement::anywhere;
    return o;
  }

  // What is sent comes back at other addresses of this process.
  struct exchange {
    result<handoff::sent_memory> sent = tl::unexpected(error{});
    result<checkpoint::restored_memory> received = tl::unexpected(error{});
  };
  template <class Send>
  exchange exchanged(const Send &send) const {
    std::array<int, 2> ends{};
    exchange out;
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    auto to = handoff::connection::adopt(owned_fd(ends[0]));
    auto from = handoff::connection::adopt(owned_fd(ends[1]));
    EXPECT_TRUE(to && from);
    std::thread receiver([&] { out.received = handoff::receive(dev(), *from, anywhere()); });
    out.sent = send(*to);
    { const auto closed = std::move(*to); }
    receiver.join();
    return out;
  }
};

// With a folder for images.
class saved_cache_fixture : public prefix_cache_fixture {
 protected:
  void SetUp() override {
    prefix_cache_fixture::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    folder_ = std::filesystem::path(::testing::TempDir()) / unique_name("prefix_cache");
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
    prefix_cache_fixture::TearDown();
  }
  std::string path(const char *name = "cache.smi") const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

}  // namespace stillmap::testing
