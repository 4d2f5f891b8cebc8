// The request to restore contents: what it writes, what it refuses before the task is stopped, and how it ends
// with its client.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "stillmap/checkpoint/control/internal/messages.h"
#include "stillmap/checkpoint/image/reader.h"
#include "tests/checkpoint/control/task.h"
#include "tests/support/gpu_test.h"
#include "tests/support/refuse_each.h"

namespace stillmap::control::testing {
namespace {

using stillmap::testing::holds;
using stillmap::testing::pattern;
using stillmap::testing::put;
using stillmap::testing::refuse_each;
using words = std::vector<std::string>;

class restores : public control_test {
 protected:
  void SetUp() override {
    control_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    make_memory();
  }
  void save(const std::string &key = {}) {
    snapshot_request r;
    r.all = true;
    r.path = path();
    r.key = key;
    ASSERT_DONE(ask().snapshot(r));
  }
  std::string path() const { return file("a.smi"); }
  restore_request all() const {
    restore_request r;
    r.all = true;
    r.path = path();
    return r;
  }
  void change() const {
    put(dev(), device_address(weights_at), pattern(4 * page(), 8));
    put(dev(), device_address(cache_at), pattern(2 * page(), 9));
  }
  ::testing::AssertionResult is_changed() const {
    const auto weights = holds(dev(), device_address(weights_at), 4 * page(), 8);
    return weights ? holds(dev(), device_address(cache_at), 2 * page(), 9) : weights;
  }
  void expect_refused(const restore_request &r, errc why, std::uint64_t value = 0) {
    const words before = seen();
    const auto no = ask().restore(r);
    ASSERT_FALSE(no);
    EXPECT_TRUE(no.error().is(why)) << no.error().message();
    if (value != 0) {
      EXPECT_EQ(no.error().value, value) << no.error().message();
    }
    EXPECT_EQ(seen(), before) << "the task is not stopped";
  }
};

TEST_F(restores, contents_come_back) {
  start(written_down());
  save();
  change();
  std::vector<snapshot_progress> told;
  const auto r = ask().restore(all(), [&](const snapshot_progress &p) { told.push_back(p); });
  ASSERT_DONE(r);
  EXPECT_EQ(r->pages, 6u);
  EXPECT_EQ(r->bytes, 6 * page());
  EXPECT_EQ(r->image, image::reader::open(path())->superblock().image);
  EXPECT_FALSE(told.empty());
  for (const snapshot_progress &p : told) EXPECT_LE(p.bytes, p.total_bytes);
  EXPECT_TRUE(memory_is_whole());
  EXPECT_EQ(seen(), (words{"stop cache weights", "go cache weights", "stop weights cache",
                           "go weights cache"}));
  EXPECT_EQ(ask().status()->job.request, request_kind::none);
}

TEST_F(restores, one_tag_comes_back) {
  start(written_down());
  save();
  change();
  ASSERT_DONE(ask().restore({{"cache"}, path()}));
  EXPECT_TRUE(holds(dev(), device_address(weights_at), 4 * page(), 8));
  EXPECT_TRUE(holds(dev(), device_address(cache_at), 2 * page(), 2));
}

TEST_F(restores, what_cannot_be_done_does_not_stop_the_task) {
  start(written_down());
  save();
  change();
  expect_refused({{"nobody's"}, path()}, errc::invalid_argument);
  const auto none = ask().restore({{"weights"}, file("none.smi")});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, std::errc::no_such_file_or_directory);
  std::ofstream(file("text.smi")) << "no image";
  expect_refused({{"weights"}, file("text.smi")}, errc::corrupt);
  ASSERT_TRUE(ask().suspend({"cache"}));
  expect_refused(all(), errc::busy, cache_at);
  ASSERT_TRUE(ask().resume("cache"));
  EXPECT_TRUE(is_changed());
}

TEST_F(restores, memory_that_moved_is_named_by_its_address) {
  start(written_down());
  growable_buffer b = filled(2, "grown", 1);
  save();
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit());
  dev().space().collect(true);
  expect_refused(all(), errc::invalid_argument, (b.address() + page()).value());
}

TEST_F(restores, a_damaged_image_does_not_stop_the_task) {
  start(written_down());
  save();
  change();
  const auto whole = image::reader::open(path());
  ASSERT_DONE(whole);
  std::fstream bytes(path(), std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekp(static_cast<std::streamoff>(whole->chunks().back().where + 77));
  bytes.put('!').put('?').put('!');
  bytes.close();
  expect_refused(all(), errc::corrupt);
  EXPECT_TRUE(is_changed());
}

TEST_F(restores, an_encrypted_image_needs_the_file_with_its_key) {
  start(written_down());
  const std::string key = file("key");
  std::ofstream(key) << image::make_secret_key().value().text() << '\n';
  ASSERT_EQ(::chmod(key.c_str(), 0600), 0);
  save(key);
  change();
  expect_refused(all(), errc::invalid_argument);
  restore_request r = all();
  r.key = file("none");
  const auto no = ask().restore(r);
  ASSERT_FALSE(no);
  EXPECT_NE(no.error().message().find("none"), std::string::npos) << no.error().message();
  EXPECT_TRUE(is_changed());
  r.key = key;
  ASSERT_DONE(ask().restore(r));
  EXPECT_TRUE(memory_is_whole());
}

// What failed before the first byte leaves the memory as it was, and each time the task goes on.
TEST_F(restores, wherever_a_driver_call_fails_the_task_goes_on) {
  STILLMAP_NEEDS_HOSTCUDA();
  start(written_down());
  save();
  constexpr const char *calls[] = {"cuCtxSynchronize",  "cuMemHostAlloc",  "cuStreamCreate",
                                   "cuMemcpyHtoDAsync", "cuMemsetD8Async", "cuStreamSynchronize"};
  std::uint64_t unspecified = 0;
  const std::uint64_t refused = refuse_each(calls, [&] {
    change();
    const auto r = ask().restore(all());
    EXPECT_EQ(std::ranges::count(seen(), "stop weights cache"),
              std::ranges::count(seen(), "go weights cache"));
    if (r) return true;
    const bool partly = r.error().message().find("unspecified") != std::string::npos;
    EXPECT_TRUE(partly || is_changed()) << r.error().message();
    unspecified += partly ? 1 : 0;
    return false;
  });
  EXPECT_GT(refused, 5u);
  EXPECT_GT(unspecified, 3u);
  ASSERT_DONE(ask().restore(all()));
  EXPECT_TRUE(memory_is_whole());
}

// Whoever stops the task while it is being stopped.
class cancelled_restores : public restores {
 protected:
  server_options held() {
    server_options o = written_down();
    o.task.quiesce = [this, before = o.task.quiesce](auto tags, std::stop_token stop) {
      const status done = before(tags, stop);
      if (!holds_) return done;
      stopping_.set_value();
      let_go_.get_future().wait();
      return done;
    };
    return o;
  }
  std::atomic<bool> holds_{false};
  std::promise<void> stopping_, let_go_;
};

TEST_F(cancelled_restores, a_restore_whose_client_is_gone_writes_nothing) {
  start(held());
  save();
  change();
  holds_ = true;
  {
    auto gone = checkpoint::socket_channel::connect(where(), std::chrono::seconds(10));
    ASSERT_TRUE(gone);
    ASSERT_TRUE(gone->send(static_cast<std::uint16_t>(kind::restore), encode(all()), {},
                           std::chrono::seconds(10), {}));
    stopping_.get_future().wait();
  }
  let_go_.set_value();
  while (ask().status()->job.request != request_kind::none) std::this_thread::yield();
  EXPECT_TRUE(is_changed());
  EXPECT_EQ(seen().back(), "go weights cache");
}

TEST_F(cancelled_restores, a_restore_can_be_aborted) {
  start(held());
  save();
  change();
  holds_ = true;
  auto first = std::async(std::launch::async, [&] { return ask().restore(all()); });
  stopping_.get_future().wait();
  auto what = std::async(std::launch::async, [&] { return ask().abort(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  let_go_.set_value();
  const auto aborted = what.get();
  ASSERT_DONE(aborted);
  EXPECT_EQ(*aborted, request_kind::restore);
  const auto no = first.get();
  ASSERT_FALSE(no);
  EXPECT_TRUE(no.error().is(errc::operation_canceled)) << no.error().message();
  EXPECT_TRUE(is_changed());
}

}  // namespace
}  // namespace stillmap::control::testing
