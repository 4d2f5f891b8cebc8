// Tests of hostcuda's race oracle: programs that break the ordering rules by direct driver calls must be
// reported with both places. The other race tests rely on it.
#include "tests/system/race/race_fixture.h"

#include <cstring>

#include "stillmap/vmm/mapping.h"

namespace stillmap::testing {
namespace {

constexpr access_grant everything_of_device_0{on_device(0), access_mode::read_write};

class oracle_sees : public race_test {
 protected:
  void SetUp() override {
    race_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    machine("");
    device_.emplace(open_device());
    if (!device_->capabilities().vmm)
      GTEST_SKIP() << "this device maps nothing: " << device_->name();
    expect_violations();
    page_ = device_->capabilities().page_bytes;
    guard_.emplace(driver(), device_->context());
    ASSERT_TRUE(guard_->entered().has_value());
    stream_ = *driver().create_stream(true);
    other_ = *driver().create_stream(true);
    at_ = *driver().reserve_addresses(2 * page_, 0, {});
    page_handle_ = map(at_);
  }

  void TearDown() override {
    if (device_) {
      // The context is broken for good, as on a GPU: nothing can be given back one by one.
      guard_.reset();
      expect_unreturnable();
      device_.reset();
      hostcuda_control::reset();
    }
    race_test::TearDown();
  }

  physical_handle map(device_address at) {
    const auto handle = driver().create_physical(page_, {on_device(0), handle_type::none, false});
    EXPECT_TRUE(handle.has_value());
    map(at, *handle);
    return *handle;
  }
  void map(device_address at, physical_handle handle) {
    EXPECT_TRUE(driver().map(at, page_, handle).has_value());
    EXPECT_TRUE(driver().set_access({at, page_}, &everything_of_device_0, 1).has_value());
  }

  // The one violation there is, of `kind`, with what was queued and what broke it, and where.
  void expect_caught(hostcuda_violation_kind kind, const char *queued, const char *breaking) {
    const auto seen = hostcuda_control::violations();
    ASSERT_FALSE(seen.empty()) << "nothing was noticed";
    const hostcuda_violation &v = seen.front();
    EXPECT_EQ(v.kind, kind);
    EXPECT_TRUE((virtual_range{at_, 2 * page_}.contains(device_address(v.at)))) << v.at;
    const std::string first = v.first, second = v.second;
    EXPECT_NE(first.find(queued), std::string::npos) << first;
    EXPECT_NE(second.find(breaking), std::string::npos) << second;
    for (const std::string &site : {first, second}) {
      EXPECT_GT(site.size(), std::max(std::strlen(queued), std::strlen(breaking)) + 4)
          << "no call site: " << site;
    }
  }

  std::optional<device> device_;
  std::optional<context_guard> guard_;
  std::size_t page_ = 0;
  stream_handle stream_ = nullptr, other_ = nullptr;
  device_address at_;
  physical_handle page_handle_ = physical_handle::none;
};

TEST_F(oracle_sees, UnmappingUnderQueuedWork) {
  hostcuda_control::hold(stream_);
  ASSERT_TRUE(driver().set_bytes_async(at_, 1, page_, stream_).has_value());
  static_cast<void>(driver().unmap({at_, page_}));
  hostcuda_control::release(stream_);
  static_cast<void>(driver().synchronize_stream(stream_));
  expect_caught(HOSTCUDA_USE_AFTER_UNMAP, "cuMemsetD8Async", "cuMemUnmap");
}

TEST_F(oracle_sees, TakingAccessAwayUnderQueuedWork) {
  hostcuda_control::hold(stream_);
  ASSERT_TRUE(driver().set_bytes_async(at_, 1, page_, stream_).has_value());
  const access_grant reading{on_device(0), access_mode::read};
  static_cast<void>(driver().set_access({at_, page_}, &reading, 1));
  hostcuda_control::release(stream_);
  static_cast<void>(driver().synchronize_stream(stream_));
  expect_caught(HOSTCUDA_USE_AFTER_UNMAP, "cuMemsetD8Async", "cuMemSetAccess");
}

// A page taken from a mapping whose work is queued still, and used elsewhere without its fence.
TEST_F(oracle_sees, RemappingWithoutTheFence) {
  hostcuda_control::hold(stream_);
  ASSERT_TRUE(driver().set_bytes_async(at_, 1, page_, stream_).has_value());
  map(at_ + page_, page_handle_);
  ASSERT_TRUE(driver().set_bytes_async(at_ + page_, 2, page_, other_).has_value());
  static_cast<void>(driver().synchronize_stream(other_));
  hostcuda_control::release(stream_);
  static_cast<void>(driver().synchronize_stream(stream_));
  expect_caught(HOSTCUDA_UNORDERED_ALIAS, "cuMemsetD8Async", "cuMemsetD8Async");
}

// The same with the fence is allowed, and the oracle knows.
TEST_F(oracle_sees, RemappingWithTheFenceIsFine) {
  hostcuda_control::hold(stream_);
  ASSERT_TRUE(driver().set_bytes_async(at_, 1, page_, stream_).has_value());
  const auto idle = fence::after(*device_, stream_);
  ASSERT_TRUE(idle.has_value());
  map(at_ + page_, page_handle_);
  ASSERT_TRUE(idle->make_wait(*device_, other_).has_value());
  ASSERT_TRUE(driver().set_bytes_async(at_ + page_, 2, page_, other_).has_value());
  hostcuda_control::release(stream_);
  ASSERT_TRUE(driver().synchronize_stream(other_).has_value());
  EXPECT_EQ(first_violation(), "");
}

// A fence that does not cover the work is as bad as none, through the library too: it believes what
// the caller says.
TEST_F(oracle_sees, AFenceOfTheWrongStream) {
  buffer_options options;
  options.reserve_bytes = 2 * page_;
  auto buffer = growable_buffer::create(*device_, options);
  ASSERT_TRUE(buffer.has_value());
  ASSERT_TRUE(buffer->resize(page_).has_value());
  at_ = buffer->address();
  hostcuda_control::hold(stream_);
  ASSERT_TRUE(driver().set_bytes_async(at_, 1, page_, stream_).has_value());
  auto wrong = fence::after(*device_, other_);
  ASSERT_TRUE(wrong.has_value());
  ASSERT_TRUE(wrong->wait().has_value());
  static_cast<void>(buffer->decommit(0, page_, *wrong));
  hostcuda_control::release(stream_);
  static_cast<void>(driver().synchronize_stream(stream_));
  expect_caught(HOSTCUDA_USE_AFTER_UNMAP, "cuMemsetD8Async", "cuMemUnmap");
}

// A forked page is read-only until make_writable: the driver refuses the write, or the device
// faults.
TEST_F(oracle_sees, WritingAForkedPageUnprepared) {
  buffer_options options;
  options.reserve_bytes = 2 * page_;
  auto buffer = growable_buffer::create(*device_, options);
  ASSERT_TRUE(buffer.has_value());
  ASSERT_TRUE(buffer->resize(page_).has_value());
  auto child = buffer->fork();
  ASSERT_TRUE(child.has_value());
  at_ = child->address();
  const status queued = driver().set_bytes_async(at_, 1, page_, stream_);
  const status done = driver().synchronize_stream(stream_);
  EXPECT_FALSE(queued.has_value() && done.has_value());
  if (queued) expect_caught(HOSTCUDA_ACCESS_FAULT, "cuMemsetD8Async", "cuMemsetD8Async");
}

}  // namespace
}  // namespace stillmap::testing
