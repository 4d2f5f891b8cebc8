// Addresses stay valid for running kernels while their buffer grows.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "stillmap/vmm/base/units.h"
#include "stillmap/vmm/device_vector.h"
#include "tests/support/captured_graph.h"
#include "tests/system/gpu/kernels.h"

namespace stillmap::testing {
namespace {

using namespace literals;

class growth_under_kernels : public gpu_test {};

TEST_F(growth_under_kernels, a_running_kernel_writes_on_while_the_buffer_grows) {
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(page()));
  write(b.address(), 0);
  put(dev(), b.address() + 4096, pattern(4096, 1));
  const device_address at = b.address();
  const stream s = make_stream();
  start_counting(at, 10, s);
  bool grown_while_running = true;
  for (std::size_t pages = 2; pages <= 64; ++pages) {
    ASSERT_TRUE(b.resize(pages * page()));
    ASSERT_EQ(b.address(), at);
    const auto idle = s.idle();
    ASSERT_TRUE(idle) << idle.error().message();
    grown_while_running = grown_while_running && !*idle;
  }
  stop_counting();
  ASSERT_TRUE(s.synchronize());
  EXPECT_TRUE(grown_while_running) << "the kernel had ended before the buffer was grown";
  EXPECT_GT(read(at), 1u);
  EXPECT_TRUE(holds(dev(), at + 4096, 4096, 1));
  put(dev(), at + 63 * page(), pattern(page(), 2));
  EXPECT_TRUE(holds(dev(), at + 63 * page(), page(), 2));
}

TEST_F(growth_under_kernels, shrinking_under_a_fence_leaves_a_running_kernel_its_memory) {
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(4 * page()));
  const stream s = make_stream();
  start_counting(b.address() + 3 * page(), 10, s);
  const fence busy = after(s);
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(b.shrink_to_fit(busy));
  EXPECT_EQ(b.mapped_bytes(), page());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // some more writes of the kernel's
  stop_counting();
  ASSERT_TRUE(s.synchronize()) << "an access fault, were the pages gone";
  EXPECT_EQ(dev().space().collect(), 3 * page());
}

TEST_F(growth_under_kernels, a_pointer_stored_on_the_device_stays_good) {
  growable_buffer data = make(), table = make();
  ASSERT_TRUE(data.resize(page()));
  ASSERT_TRUE(table.resize(page()));
  const std::uint64_t element = (data.address() + 1000 * 4).value();
  ASSERT_TRUE(cu().copy_to_device(table.address(), &element, sizeof element));
  const stream s = make_stream();
  for (std::uint32_t round = 1; round <= 10; ++round) {
    launch_store_through(table.address(), round, s);
    ASSERT_TRUE(data.resize((1 + 5 * round) * page()));
    ASSERT_TRUE(s.synchronize());
    EXPECT_EQ(read(data.address() + 1000 * 4), round);
  }
  EXPECT_EQ(data.stats().relocations, 0u);
  // The end of what has grown, through the same table.
  const std::uint64_t last = (data.address() + (data.size() - 4)).value();
  ASSERT_TRUE(cu().copy_to_device(table.address(), &last, sizeof last));
  launch_store_through(table.address(), 77, s);
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(data.address() + (data.size() - 4)), 77u);
}

TEST_F(growth_under_kernels, a_captured_graph_replays_on_what_has_grown) {
  growable_buffer b = make(), count = make();
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(count.resize(page()));
  const auto words = [&] { return static_cast<std::uint32_t>(b.size() / 4); };
  ASSERT_TRUE(cu().set_bytes_async(b.address(), 0, page(), nullptr));
  write(count.address(), words());
  const stream s = make_stream();
  captured_graph graph(dev(), s);
  launch_increment(b.address(), count.address(), s);
  ASSERT_TRUE(graph.end());
  graph.launch(s);
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(b.address()), 1u);
  // Replays are queued while it grows; none of them knows that it did.
  for (int i = 0; i < 4; ++i) graph.launch(s);
  ASSERT_TRUE(b.resize(8 * page()));
  ASSERT_TRUE(s.synchronize());
  ASSERT_TRUE(cu().set_bytes_async(b.address() + page(), 0, 7 * page(), nullptr));
  write(count.address(), words());
  graph.launch(s);
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(b.address()), 6u);
  EXPECT_EQ(read(b.address() + (page() - 4)), 6u);
  EXPECT_EQ(read(b.address() + page()), 1u);
  EXPECT_EQ(read(b.address() + (8 * page() - 4)), 1u);
}

TEST_F(growth_under_kernels, kernels_write_forks_rings_and_spliced_pages) {
  growable_buffer a = make(), count = make(), other = make();
  ASSERT_TRUE(count.resize(page()));
  ASSERT_TRUE(a.resize(2 * page()));
  ASSERT_TRUE(cu().set_bytes_async(a.address(), 0, 2 * page(), nullptr));
  write(count.address(), static_cast<std::uint32_t>(page() / 4));
  const stream s = make_stream();
  {
    auto child = a.fork();
    ASSERT_TRUE(child) << child.error().message();
    ASSERT_TRUE(child->make_writable(0, page(), s));
    launch_increment(child->address(), count.address(), s);
    ASSERT_TRUE(s.synchronize());
    EXPECT_EQ(read(child->address()), 1u);
    EXPECT_EQ(read(a.address()), 0u) << "the other half of the fork";
  }
  ASSERT_TRUE(a.make_writable(0, 2 * page(), s));
  {
    auto ring = a.alias(0, 2 * page(), 2);
    ASSERT_TRUE(ring);
    // One page from the middle of the last: over the end, into the beginning.
    launch_increment(ring->address() + (page() + page() / 2), count.address(), s);
    ASSERT_TRUE(s.synchronize());
    EXPECT_EQ(read(a.address()), 1u);
    EXPECT_EQ(read(a.address() + page() / 2), 0u);
    EXPECT_EQ(read(a.address() + (page() + page() / 2)), 1u);
  }
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(page()));
  ASSERT_TRUE(cu().set_bytes_async(b.address(), 0, page(), s.get()));
  launch_increment(b.address(), count.address(), s);
  ASSERT_TRUE(b.splice(0, page(), other, 3 * page(), after(s)));
  launch_increment(other.address() + 3 * page(), count.address(), s);
  ASSERT_TRUE(s.synchronize());
  EXPECT_EQ(read(other.address() + 3 * page()), 2u);
}

TEST_F(growth_under_kernels, another_device_reads_and_writes_what_it_was_let_into) {
  if (*device::count() < 2) GTEST_SKIP() << "needs two devices";
  const device second = open_device(1);
  if (std::find(dev().capabilities().peers.begin(), dev().capabilities().peers.end(), 1) ==
      dev().capabilities().peers.end()) {
    GTEST_SKIP() << "device 1 is no peer of device 0";
  }
  buffer_options options;
  options.pools = {dev().pool(), second.pool()};
  options.peer_devices = {1};
  growable_buffer b = make(options);
  ASSERT_TRUE(b.resize(2 * page()));
  put(dev(), b.address(), pattern(2 * page(), 1));
  EXPECT_TRUE(holds(second, b.address(), 2 * page(), 1));
  put(second, b.address(), pattern(2 * page(), 2));
  ASSERT_TRUE(b.resize(6 * page()));
  EXPECT_TRUE(holds(dev(), b.address(), 2 * page(), 2));
  put(second, b.address() + 5 * page(), pattern(page(), 3));
  EXPECT_TRUE(holds(dev(), b.address() + 5 * page(), page(), 3));
}

TEST_F(growth_under_kernels, grows_to_four_fifths_of_the_memory) {
  growable_buffer b = make();
  const std::size_t free = dev().memory()->free.bytes();
  // hostcuda's memory is the machine's: enough to see that it works.
  const std::size_t target = round_down(
      runs_on_host() ? std::min<std::size_t>(free / 5 * 4, 512_MiB) : free / 5 * 4, page());
  const device_address at = b.address();
  const std::size_t step = round_up(target / 16, page());
  for (std::size_t size = step;; size = std::min(size + step, target)) {
    ASSERT_TRUE(b.resize(size));
    write(at + (size - 4), static_cast<std::uint32_t>(size / page()));
    if (size == target) break;
  }
  EXPECT_EQ(b.address(), at);
  EXPECT_EQ(b.stats().bytes_copied, 0u);
  for (std::size_t size = step;; size = std::min(size + step, target)) {
    EXPECT_EQ(read(at + (size - 4)), static_cast<std::uint32_t>(size / page()));
    if (size == target) break;
  }
  ASSERT_TRUE(b.resize(0));
  ASSERT_TRUE(b.shrink_to_fit());
  ASSERT_TRUE(dev().pool()->trim());
}

TEST_F(growth_under_kernels, a_vector_is_pushed_into_and_computed_on_in_stream_order) {
  growable_buffer count = make();
  ASSERT_TRUE(count.resize(page()));
  const stream s = make_stream();
  auto made = device_vector<std::uint32_t>::create(dev(), {}, s);
  ASSERT_TRUE(made);
  std::uint32_t pushed = 0;
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (std::uint32_t i = 0; i < 300000; ++i) ASSERT_TRUE(made->push_back(pushed++));
    const std::uint32_t *const data = made->data();
    write(count.address(), pushed);
    launch_increment(device_address(reinterpret_cast<std::uintptr_t>(data)), count.address(), s);
    ASSERT_TRUE(made->synchronize());
  }
  const auto values = made->to_host();
  ASSERT_TRUE(values);
  for (std::uint32_t i = 0; i < pushed; i += 997) {
    EXPECT_EQ((*values)[i], i + 5 - i / 300000) << i;
  }
}

}  // namespace
}  // namespace stillmap::testing
