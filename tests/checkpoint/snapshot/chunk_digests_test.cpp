// Digests computed by the device, and the arithmetic of its kernel on the host.
#include "stillmap/checkpoint/snapshot/chunk_digests.h"

#include <gtest/gtest.h>
#include <hostcuda/hostcuda.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <type_traits>

#include "stillmap/checkpoint/snapshot/internal/chunk_digests_ptx.h"
#include "stillmap/checkpoint/snapshot/internal/host_kernel.h"
#include "stillmap/checkpoint/snapshot/internal/kernels/poly1305.h"
#include "stillmap/vmm/context.h"
#include "stillmap/vmm/stream.h"
#include "tests/support/buffer_test.h"
#include "tests/support/stream_gate.h"

namespace stillmap::snapshot {
namespace {

using namespace literals;

// The library declares the types of hostcuda's functions itself; these must match its header.
static_assert(sizeof(host_kernels::launch) == sizeof(hostcuda_launch));
static_assert(offsetof(host_kernels::launch, block) == offsetof(hostcuda_launch, block));
static_assert(offsetof(host_kernels::launch, params) == offsetof(hostcuda_launch, params));
static_assert(std::is_same_v<host_kernels::access, decltype(&hostcuda_access)>);
static_assert(
    std::is_same_v<decltype(&hostcuda_register_kernel),
                   CUresult (*)(const char *, hostcuda_kernel, unsigned, const std::size_t *)>);
static_assert(sizeof(CUresult) == sizeof(int));

image::digest_key a_key(unsigned seed) {
  std::mt19937_64 random(seed);
  image::digest_key key;
  for (std::byte &b : key.bytes) b = static_cast<std::byte>(random());
  return key;
}

// With a digester for one call.
result<std::vector<image::digest>> chunk_digests(const device &d,
                                                 std::span<const virtual_range> chunks) {
  return chunk_digester::create(d, a_key(1)).and_then([&](chunk_digester with) {
    return with.digests_of(chunks);
  });
}

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(n);
  for (std::size_t i = 0; i < n; ++i) out[i] = static_cast<std::byte>(random());
  return out;
}

// Computes what `threads` threads of the kernel compute, one after the other.
image::digest by_threads(const image::digest_key &key, const std::vector<std::byte> &bytes,
                         unsigned threads) {
  using namespace stillmap_kernels;
  const auto number = [](const auto &from, std::size_t at) {
    std::uint64_t n = 0;
    std::memcpy(&n, from.data() + at, sizeof n);
    return n;
  };
  const element r = clamped(number(key.bytes, 0), number(key.bytes, 8));
  element_sum sum{};
  for (unsigned t = 0; t < threads; ++t) {
    const thread_powers powers = powers_for(r, t, threads);
    element h{};
    for (std::size_t at = t * word_bytes; at < bytes.size(); at += threads * word_bytes) {
      h = plus(times(h, powers.step), coefficient(number(bytes, at), number(bytes, at + 8)));
    }
    h = times(h, powers.own);
    for (unsigned i = 0; i < limb_count; ++i) sum.limb[i] += h.limb[i];
  }
  const tag made = finish(sum, number(key.bytes, 16), number(key.bytes, 24));
  image::digest out;
  std::memcpy(out.bytes.data(), &made, sizeof made);
  return out;
}

TEST(poly1305, of_threads_is_that_of_openssl) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::size_t blocks = 1 + seed % 17;
    std::vector<std::byte> bytes = random_bytes(blocks * image::block_bytes, seed);
    image::digest_key key = a_key(seed);
    // The largest and the smallest words and keys, where carries go furthest.
    if (seed % 4 == 1) std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
    if (seed % 4 == 2) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    if (seed % 3 == 1) key.bytes.fill(std::byte{0xFF});
    if (seed % 3 == 2)
      std::fill(key.bytes.begin(), key.bytes.begin() + 16, static_cast<std::byte>(seed % 2));
    const auto expected = image::digest_of_contents(key, bytes);
    ASSERT_TRUE(expected) << expected.error().message();
    for (const unsigned threads : {1u, 2u, 32u, 256u}) {
      EXPECT_EQ(by_threads(key, bytes, threads), *expected) << seed << ", " << threads;
    }
  }
}

// Sums next to the modulus, 2^130 - 5: the last subtraction, which random contents never need.
TEST(poly1305, sums_next_to_the_modulus) {
  using namespace stillmap_kernels;
  const element_sum modulus{{limb_mask - 4, limb_mask, limb_mask, limb_mask, limb_mask}};
  for (int above = -6; above < 10; ++above) {
    element_sum sum = modulus;
    sum.limb[0] = static_cast<std::uint64_t>(static_cast<std::int64_t>(sum.limb[0]) + above);
    const tag t = finish(sum, 0, 0);
    const bool wraps = above >= 0;
    EXPECT_EQ(t.high, wraps ? 0 : ~std::uint64_t{0}) << above;
    // 2^130 - 5 + above, modulo 2^128.
    EXPECT_EQ(t.low, wraps ? static_cast<std::uint64_t>(above)
                           : static_cast<std::uint64_t>(std::int64_t{above} - 5))
        << above;
  }
  const element_sum sum{{7, 0, 0, 0, 0}};
  EXPECT_EQ(finish(sum, ~std::uint64_t{0}, 1).low, 6U);
  EXPECT_EQ(finish(sum, ~std::uint64_t{0}, 1).high, 2U)
      << "the carry of the second half of the key";
}

class chunk_digests_test : public stillmap::testing::buffer_test {};

TEST_F(chunk_digests_test, of_device_memory_are_those_that_images_store) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(5 * page()));
  const std::vector<unsigned char> bytes = testing::pattern(5 * page(), 1);
  testing::put(dev(), b.address(), bytes);
  // Chunks of several sizes, not in address order.
  const std::size_t sizes[] = {4096, page(), 1 << 20, (64 << 10) + 4096};
  std::vector<virtual_range> chunks;
  for (std::size_t i = 0; i < 40; ++i) {
    const std::size_t size = sizes[i % 4];
    chunks.push_back({b.address() + (39 - i) * 100'000 / 16 * 16, size});
  }
  const driver_counts before = counts();
  const auto made = chunk_digests(dev(), chunks);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ((counts() - before).bytes_to_host, chunks.size() * 16)
      << "only digests leave the device";
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::size_t at = chunks[i].begin - b.address();
    EXPECT_EQ((*made)[i],
              image::digest_of_contents(
                  a_key(1), std::as_bytes(std::span(bytes).subspan(at, chunks[i].bytes))))
        << "chunk " << i;
  }
}

// A failed wait may not have waited. Kernels must still finish before their memory is released and
// before the caller unmaps the chunks; hostcuda's oracle checks it.
TEST_F(chunk_digests_test, a_wait_that_fails_leaves_nothing_running) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  namespace control = testing::hostcuda_control;
  restart_as("profile=h200,schedule=seeded:1");  // nothing runs until somebody waits
  {
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(4 * page()));
    const virtual_range chunks[] = {{b.address(), page()}, {b.address() + page(), page()}};
    ASSERT_TRUE(chunk_digests(dev(), chunks));
    // At least a parameter, a kernel and a result.
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      control::fail("cuStreamSynchronize", nth, CUDA_ERROR_UNKNOWN);
      EXPECT_FALSE(chunk_digests(dev(), chunks)) << nth;
      EXPECT_TRUE(b.resize(page()));
      EXPECT_TRUE(b.shrink_to_fit());
      EXPECT_TRUE(b.resize(4 * page()));
    }
  }
  EXPECT_TRUE(control::violations().empty());
}

// A kernel that was launched before the failure reads its chunk, which the caller may unmap next.
TEST_F(chunk_digests_test, a_launch_that_fails_waits_for_those_before) {
  STILLMAP_NEEDS_HOSTCUDA();
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two processors";
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(4 * page()));
  auto with = chunk_digester::create(dev(), a_key(1));
  ASSERT_TRUE(with) << with.error().message();
  const virtual_range chunks[] = {{b.address() + 2 * page(), page()},
                                  {b.address() + 3 * page(), page()}};
  ASSERT_TRUE(with->digests_of(chunks));
  testing::hostcuda_control::fail("cuLaunchKernel", 2, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  const driver_counts before = counts();
  EXPECT_FALSE(with->digests_of(chunks));
  EXPECT_EQ((counts() - before)[driver_call::StreamSynchronize], 3u)
      << "for the list of chunks, and for each stream";
}

// Regression test: replacing memory from cuMemAlloc waited for the whole device, and a synchronous
// copy for all blocking streams, so that a long kernel delayed a migration.
TEST_F(chunk_digests_test, wait_for_nobody_elses_work) {
  STILLMAP_NEEDS_VMM();
  namespace control = testing::hostcuda_control;
  growable_buffer b = make(), others = make();
  ASSERT_TRUE(b.resize(16 * page()));
  ASSERT_TRUE(others.resize(page()));
  const auto busy = stream::create(dev(), /*non_blocking=*/false);
  ASSERT_TRUE(busy);
  testing::hold(busy->get());
  {
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(driver().set_bytes_async(others.address(), 1, page(), busy->get()));
  }
  std::atomic<bool> over{false};
  std::thread in_the_end([&] {
    for (int i = 0; i < 500 && !over; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    testing::release(busy->get());
  });
  {
    auto with = chunk_digester::create(dev(), a_key(1));
    EXPECT_TRUE(with);
    for (std::size_t n = 1; with && n <= 64; n *= 8) {  // needs more room each time
      const std::vector<virtual_range> chunks(n, {b.address(), n * 64_KiB});
      EXPECT_TRUE(with->digests_of(chunks));
    }
  }
  EXPECT_FALSE(*busy->idle()) << "it had waited until the stream was let go";
  over = true;
  in_the_end.join();
  EXPECT_TRUE(busy->synchronize());
}

// The list of chunks and their digests, 32 bytes each, are more than a page here.
TEST_F(chunk_digests_test, memory_that_is_not_there_is_an_error_and_keeps_no_page) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  const std::size_t most = 4 * page();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(most));
  const std::vector<unsigned char> bytes = testing::pattern(most, 1);
  testing::put(dev(), b.address(), bytes);
  std::vector<virtual_range> chunks(page() / 32, {b.address(), 4_KiB});
  chunks.push_back({b.address(), most});
  auto with = chunk_digester::create(dev(), a_key(1));
  ASSERT_TRUE(with) << with.error().message();
  const std::size_t physical = dev().space().stats().physical.bytes();
  leave_free(1);
  const auto refused = with->digests_of(chunks);
  ASSERT_FALSE(refused);
  EXPECT_TRUE(refused.error().is(errc::out_of_memory)) << refused.error().message();
  EXPECT_EQ(dev().space().stats().physical.bytes(), physical);
  leave_free(2);
  testing::hostcuda_control::fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(with->digests_of(chunks));
  EXPECT_EQ(dev().space().stats().physical.bytes(), physical);
  const auto made = with->digests_of(chunks);
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->back(), image::digest_of_contents(a_key(1), std::as_bytes(std::span(bytes))));
  testing::hostcuda_control::occupy(0, 0);
}

// The kernel on the host reports addresses that it cannot access, as a device would.
TEST_F(chunk_digests_test, addresses_that_are_not_mapped_are_a_fault) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  expect_violations();
  expect_unreturnable();  // the context is lost
  for (const bool list_is_mapped : {true, false}) {
    restart_as("profile=h200");
    growable_buffer b = make();
    ASSERT_TRUE(b.resize(page()));
    const stream s = make_stream();
    const context_guard guard(driver(), dev().context());
    ASSERT_TRUE(guard.entered());
    register_host_kernel(driver());
    const auto module = driver().load_module(chunk_digests_ptx);
    ASSERT_TRUE(module) << module.error().message();
    const auto kernel = driver().module_function(*module, kernel_name);
    ASSERT_TRUE(kernel) << kernel.error().message();
    const std::uint64_t elsewhere = (b.address() + b.reserved()).value();
    std::uint64_t list = list_is_mapped ? b.address().value() : elsewhere, count = 1,
                  digests = list_is_mapped ? elsewhere : b.address().value(), key = 0;
    void *params[] = {&list, &count, &digests, &key, &key, &key, &key};
    ASSERT_TRUE(driver().launch(*kernel, 1, 256, params, s.get()));
    const status done = s.synchronize();
    ASSERT_FALSE(done);
    EXPECT_TRUE(done.error().is(errc::device_lost)) << done.error().message();
  }
}

TEST_F(chunk_digests_test, chunks_that_are_no_whole_blocks_are_refused) {
  STILLMAP_NEEDS_VMM();
  growable_buffer b = make();
  ASSERT_TRUE(b.resize(page()));
  for (const virtual_range chunk :
       {virtual_range{b.address(), 4096 + 8}, virtual_range{b.address(), 0},
        virtual_range{b.address() + 8, 4096}}) {
    const auto made = chunk_digests(dev(), {&chunk, 1});
    ASSERT_FALSE(made);
    EXPECT_TRUE(made.error().is(errc::not_supported));
  }
}

}  // namespace
}  // namespace stillmap::snapshot
