#include "stillmap/vmm/device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/growable_buffer.h"
#include "stillmap/vmm/page_pool.h"
#include "tests/support/gpu_test.h"
#include "tests/support/hostcuda_control.h"

namespace stillmap {
namespace {

using namespace literals;
using testing::hostcuda_control::counters;

class device_open : public testing::device_test {
 protected:
  void SetUp() override {
    device_test::SetUp();
    if (!IsSkipped() && !on_hostcuda()) GTEST_SKIP() << "about hostcuda";
  }
  bool plays(const char *profile) const {
    return testing::hostcuda_control::config().find(std::string("profile=") + profile) !=
           std::string::npos;
  }
};

TEST_F(device_open, gives_equal_handles_of_one_state) {
  const device a = open_device(), b = open_device();
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.context(), b.context());
  EXPECT_NE(a.context(), nullptr);
  EXPECT_FALSE(a.name().empty());
  EXPECT_GT(a.total_memory().bytes(), 0u);
  EXPECT_NE(a.uuid(), (std::array<unsigned char, 16>{}));
  EXPECT_EQ(&a.driver(), &driver());
}

TEST_F(device_open, a_second_time_calls_nothing) {
  const device a = open_device();
  const driver_counts before = driver().counts();
  const device b = open_device();
  EXPECT_EQ((driver().counts() - before).total(), 0u);
}

TEST_F(device_open, leaves_the_threads_context_as_it_was) {
  const device a = open_device();
  EXPECT_EQ(*driver().current_context(), nullptr);
}

// Drivers advertise fabric handles that they cannot export without an IMEX daemon.
TEST_F(device_open, fabric_export_is_what_a_trial_finds) {
  const device d = open_device();
  if (!d.capabilities().vmm) GTEST_SKIP() << "needs VMM, which this device does not have";
  physical_properties p;
  p.location = on_device(0);
  p.exportable = handle_type::fabric;
  const context_guard guard(driver(), d.context());
  const auto page = driver().create_physical(d.capabilities().page_bytes, p);
  const bool works = page && driver().export_fabric(*page);
  if (page) {
    EXPECT_TRUE(driver().release_physical(*page));
  }
  EXPECT_EQ(d.capabilities().fabric_export, works);
}

TEST_F(device_open, refuses_a_device_that_is_not_there) {
  const int count = *device::count();
  const auto past = device::open(driver(), count);
  ASSERT_FALSE(past);
  EXPECT_TRUE(past.error().is(errc::invalid_argument));
  EXPECT_EQ(past.error().value, static_cast<std::uint64_t>(count));
  EXPECT_EQ(past.error().limit, static_cast<std::uint64_t>(count));
  EXPECT_STREQ(past.error().reason, "there is no such device");
  const auto negative = device::open(driver(), -1);
  ASSERT_FALSE(negative);
  EXPECT_TRUE(negative.error().is(errc::invalid_argument));
}

TEST_F(device_open, the_last_handle_releases_the_context) {
  {
    const device a = open_device();
    EXPECT_EQ(counters().live_contexts, 1u);
    std::shared_ptr<page_pool> pool = a.pool();
    device b = a;
    b = open_device();
  }
  EXPECT_EQ(counters().live_contexts, 0u);
}

TEST_F(device_open, the_pool_keeps_the_device) {
  std::shared_ptr<page_pool> pool = open_device().pool();
  EXPECT_EQ(counters().live_contexts, 1u);
  EXPECT_EQ(&pool->driver(), &driver());
  pool.reset();
  EXPECT_EQ(counters().live_contexts, 0u);
}

TEST_F(device_open, works_again_after_the_machine_was_switched_off) {
  { const device a = open_device(); }
  testing::hostcuda_control::reset();
  const device b = open_device();
  EXPECT_TRUE(b.memory());
}

TEST_F(device_open, probes_once_when_many_threads_open_at_once) {
  const driver_counts before = driver().counts();
  std::vector<std::optional<device>> opened(8);
  {
    std::vector<std::jthread> threads;
    for (auto &slot : opened) threads.emplace_back([&] { slot = open_device(); });
  }
  for (const auto &d : opened) EXPECT_EQ(*d, *opened.front());
  EXPECT_EQ((driver().counts() - before)[driver_call::DevicePrimaryCtxRetain], 1u);
}

TEST_F(device_open, memory_is_what_the_driver_says) {
  const device a = open_device();
  const auto before = a.memory();
  ASSERT_TRUE(before) << before.error().message();
  EXPECT_LE(before->free, before->total);
  const context_guard guard(driver(), a.context());
  const auto at = driver().allocate(4_MiB);
  ASSERT_TRUE(at);
  EXPECT_EQ((before->free - a.memory()->free).bytes(), 4_MiB);
  EXPECT_TRUE(driver().free(*at));
}

TEST_F(device_open, finds_what_the_machine_can_do) {
  const device d = open_device();
  const capabilities &can = d.capabilities();
  EXPECT_EQ(can.vmm, !plays("vgpu-no-vmm"));
  EXPECT_EQ(can.page_bytes, 2_MiB);
  EXPECT_GE(can.recommended_page_bytes, can.page_bytes);
  EXPECT_EQ(can.wsl, plays("wsl2"));
  if (plays("old-driver-450")) {
    EXPECT_FALSE(can.memory_pools);
  }
  const bool peers =
      plays("multi") && testing::hostcuda_control::config().find("peers=none") == std::string::npos;
  EXPECT_EQ(can.peers.size(), peers ? static_cast<std::size_t>(*device::count()) - 1 : 0u);
  EXPECT_EQ(std::count(can.peers.begin(), can.peers.end(), d.ordinal()), 0);
  EXPECT_EQ(can.mapping_ceiling > 0, can.vmm);
  EXPECT_EQ(can.largest_reservation > 0, can.vmm);
  if (can.vmm && !can.wsl) {
    EXPECT_GE(can.largest_reservation, d.total_memory().bytes());
  }
  if (plays("h200") || plays("a100") || plays("multi")) {
    EXPECT_TRUE(can.posix_fd_export);
    EXPECT_TRUE(can.memory_pools);
  }
}

TEST_F(device_open, believes_a_page_and_not_an_attribute) {
  become("profile=wsl2");
  const device d = open_device();
  ASSERT_TRUE(d.capabilities().vmm);
  // Advertised, and refused by cuMemSetAccess.
  EXPECT_EQ(*driver().device_attribute(110, 0), 1);
  EXPECT_FALSE(d.capabilities().rdma);
  EXPECT_TRUE(d.capabilities().wsl);
  EXPECT_LT(d.capabilities().largest_reservation, 32_GiB);
}

TEST_F(device_open, devices_that_are_no_peers_share_no_buffer) {
  become("profile=multi:2,peers=none");
  const device d = open_device();
  EXPECT_TRUE(d.capabilities().peers.empty());
  buffer_options shared;
  shared.peer_devices = {1};
  const auto refused = growable_buffer::create(d, shared);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::invalid_argument)) << refused.error().message();
  auto own = growable_buffer::create(d);
  ASSERT_TRUE(own);
  EXPECT_TRUE(own->resize(4_MiB));
}

TEST_F(device_open, a_feature_that_fails_is_absent_and_the_rest_is_not) {
  become("profile=h200");
  const struct {
    const char *function;
    std::uint64_t nth;
    bool capabilities::*feature;
  } broken[] = {{"cuMemExportToShareableHandle", 1, &capabilities::posix_fd_export},
                {"cuMemAllocAsync", 1, &capabilities::memory_pools},
                {"cuMemFreeAsync", 1, &capabilities::memory_pools},
                {"cuMemSetAccess", 1, &capabilities::vmm},
                {"cuMemMap", 1, &capabilities::vmm},
                {"cuMemAddressReserve", 1, &capabilities::vmm}};
  for (const auto &b : broken) {
    // The functions are looked up once a process, on the machine it started as.
    if (b.feature == &capabilities::memory_pools && !driver().has(driver_call::MemAllocAsync))
      continue;
    const bool before = open_device().capabilities().*b.feature;
    EXPECT_TRUE(before) << b.function;
    testing::hostcuda_control::fail(b.function, b.nth, CUDA_ERROR_UNKNOWN);
    const device d = open_device();
    EXPECT_FALSE(d.capabilities().*b.feature) << b.function;
    EXPECT_TRUE(d.capabilities().vmm || b.feature == &capabilities::vmm) << b.function;
    EXPECT_EQ(d.capabilities().page_bytes, 2_MiB);
  }
}

TEST_F(device_open, without_a_recommended_page_size_the_smallest_is_recommended) {
  become("profile=h200");
  testing::hostcuda_control::fail("cuMemGetAllocationGranularity", 2, CUDA_ERROR_NOT_SUPPORTED);
  const device d = open_device();
  EXPECT_EQ(testing::hostcuda_control::faults_fired(), 1u);
  EXPECT_TRUE(d.capabilities().vmm);
  EXPECT_EQ(d.capabilities().page_bytes, 2_MiB);
  EXPECT_EQ(d.capabilities().recommended_page_bytes, 2_MiB);
}

TEST_F(device_open, a_full_device_is_not_taken_for_one_without_virtual_memory) {
  become("profile=h200");
  {
    // One page short of nothing: the context itself fits.
    const device d = open_device();
    testing::hostcuda_control::occupy(0, static_cast<std::size_t>(d.memory()->free.bytes()));
  }
  const auto full = device::open(driver(), 0);
  ASSERT_FALSE(full);
  EXPECT_TRUE(full.error().is(errc::out_of_memory)) << full.error().message();
  testing::hostcuda_control::occupy(0, 0);
  EXPECT_TRUE(open_device().capabilities().vmm);
}

// Whatever call fails, and however: an open device or a clear error, and nothing left behind. A
// call that gives something back is the exception: then the failure itself is reported.
TEST_F(device_open, leaks_nothing_wherever_it_fails) {
  expect_unreturnable();
  const auto calls_of_one = [&] {
    testing::hostcuda_control::reset();
    const std::uint64_t before = testing::hostcuda_control::calls(nullptr);
    { const device d = open_device(); }
    return testing::hostcuda_control::calls(nullptr) - before;
  };
  const std::uint64_t calls = calls_of_one();
  ASSERT_GT(calls, 10u);
  for (const CUresult code : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY,
                              CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_NOT_SUPPORTED}) {
    std::uint64_t refused = 0;
    for (std::uint64_t n = 1; n <= calls; ++n) {
      testing::hostcuda_control::reset();
      const std::uint64_t reported = background_error_count();
      testing::hostcuda_control::fail(nullptr, n, code);
      bool opened = false;
      {
        const auto d = device::open(driver(), 0);
        opened = d.has_value();
        if (!opened) {
          ++refused;
          EXPECT_EQ(d.error().code.value(), static_cast<int>(code)) << d.error().message();
        }
      }
      if (background_error_count() != reported) continue;
      EXPECT_EQ(testing::hostcuda_control::faults_fired(), 1u) << n;
      EXPECT_EQ(leftovers(), "") << "call " << n << " failed with " << code;
      EXPECT_EQ(counters().live_contexts, 0u) << "call " << n << " failed with " << code;
      if (code == CUDA_ERROR_LAUNCH_FAILED) {
        EXPECT_FALSE(opened) << "call " << n << " lost the device";
      }
    }
    EXPECT_GT(refused, 5u);
  }
  testing::hostcuda_control::reset();
}

TEST_F(device_open, guards_enter_nest_and_leave) {
  const device d = open_device();
  const context_handle none = *driver().current_context();
  EXPECT_EQ(none, nullptr);
  {
    const context_guard outer(driver(), d.context());
    EXPECT_TRUE(outer.entered());
    const driver_counts before = driver().counts();
    {
      const context_guard inner(driver(), d.context());
      EXPECT_TRUE(inner.entered());
    }
    EXPECT_EQ((driver().counts() - before).total(), 1u);
    EXPECT_EQ(*driver().current_context(), d.context());
  }
  EXPECT_EQ(*driver().current_context(), nullptr);
}

TEST_F(device_open, guards_within_a_scope_of_their_context_cost_no_call) {
  const device d = open_device();
  const auto calls_of = [&](auto act) {
    const driver_counts before = driver().counts();
    act();
    return (driver().counts() - before).total();
  };
  const auto guards = [&](context_handle c) {
    return calls_of([&] { EXPECT_TRUE(context_guard(driver(), c).entered()); });
  };
  const auto other = primary_context::retain(driver(), driver().device_count().value() - 1);
  ASSERT_TRUE(other);
  {
    const context_scope scope(driver(), d.context());
    ASSERT_TRUE(scope.entered());
    EXPECT_EQ(guards(d.context()), 0u);
    std::thread([&] { EXPECT_EQ(guards(d.context()), 3u) << "a scope is one thread's"; }).join();
    if (other->get() != d.context()) {
      // A guard of another context within the scope, and one of the scope's context in that.
      const context_guard elsewhere(driver(), other->get());
      EXPECT_EQ(*driver().current_context(), other->get());
      EXPECT_EQ(guards(d.context()), 3u);
      const context_scope inner(driver(), d.context());
      EXPECT_EQ(*driver().current_context(), d.context());
    }
    {
      const outside_scopes callback;
      EXPECT_EQ(guards(d.context()), 1u);
    }
    EXPECT_EQ(*driver().current_context(), d.context());
    EXPECT_EQ(guards(d.context()), 0u);
  }
  EXPECT_EQ(guards(d.context()), 3u);
  EXPECT_EQ(*driver().current_context(), nullptr);
}

// Regression: it counted as the context of no scope.
TEST_F(device_open, a_guard_enters_no_null_context) {
  const device d = open_device();
  const context_guard guard(driver(), d.context());
  EXPECT_FALSE(context_guard(driver(), nullptr).entered());
}

TEST_F(device_open, a_scope_that_cannot_enter_says_so_and_does_not_count) {
  const device d = open_device();
  testing::hostcuda_control::fail("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
  const context_scope scope(driver(), d.context());
  ASSERT_FALSE(scope.entered());
  const context_guard guard(driver(), d.context());
  EXPECT_TRUE(guard.entered());
  EXPECT_EQ(*driver().current_context(), d.context());
}

TEST_F(device_open, a_guard_that_cannot_enter_says_so_and_leaves_nothing) {
  const device d = open_device();
  testing::hostcuda_control::fail("cuCtxPushCurrent", 1, CUDA_ERROR_INVALID_CONTEXT);
  {
    const context_guard guard(driver(), d.context());
    ASSERT_FALSE(guard.entered());
    EXPECT_STREQ(guard.entered().error().operation, "cuCtxPushCurrent");
  }
  EXPECT_EQ(*driver().current_context(), nullptr);
}

TEST_F(device_open, primary_contexts_move_and_are_released_once) {
  {
    auto first = primary_context::retain(driver(), 0);
    ASSERT_TRUE(first) << first.error().message();
    primary_context second = std::move(*first);
    EXPECT_EQ(first->get(), nullptr);
    EXPECT_NE(second.get(), nullptr);
    *first = std::move(second);
    EXPECT_NE(first->get(), nullptr);
  }
  EXPECT_EQ(counters().live_contexts, 0u);
}

}  // namespace
}  // namespace stillmap
