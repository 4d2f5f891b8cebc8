// thrust::device_vector on cccl::thrust_allocator. Compiled for Thrust's host system, whose algorithms
// run on the CPU: hostcuda's device memory is host memory, so they read and write it.
#include <gtest/gtest.h>

#ifdef STILLMAP_HAVE_CCCL

#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "stillmap/allocators/cccl/thrust_allocator.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using cccl::thrust_allocator;
using cccl::thrust_resource;
template <class T>
using vector = thrust::device_vector<T, thrust_allocator<T>>;

class cccl_thrust : public testing::buffer_test {
 protected:
  void SetUp() override {
    buffer_test::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    STILLMAP_NEEDS_HOSTCUDA();
  }
  std::shared_ptr<caching_allocator> heap(std::size_t limit = SIZE_MAX) const {
    caching_allocator_options options;
    options.limit = limit;
    auto made = caching_allocator::create(dev(), std::move(options));
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  static std::size_t live(const caching_allocator &a) { return a.stats().total.live; }
};

TEST_F(cccl_thrust, a_device_vector_allocates_grows_and_frees) {
  const auto h = heap();
  {
    vector<int> v(thrust_allocator<int>{h});
    for (int i = 0; i < 20'000; ++i) v.push_back(20'000 - i);
    EXPECT_TRUE(h->owns(thrust::raw_pointer_cast(v.data())));
    thrust::sort(v.begin(), v.end());
    thrust::host_vector<int> sorted(20'000);
    thrust::sequence(sorted.begin(), sorted.end(), 1);
    EXPECT_TRUE(v == sorted);
    v.resize(50'000, 9);
    EXPECT_EQ(v[49'999], 9);
    EXPECT_EQ(v[0], 1);
    v.clear();
    v.shrink_to_fit();
    EXPECT_EQ(v.capacity(), 0u);
    EXPECT_EQ(live(*h), 0u);
    v.resize(3, 4);
  }
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_thrust, vectors_outlive_the_allocator_they_were_made_with) {
  std::weak_ptr<caching_allocator> watched;
  {
    auto h = heap();
    watched = h;
    vector<double> v(10'000, 1.5, thrust_allocator<double>{h});
    h.reset();
    vector<double> copy = v, moved = std::move(v);
    copy.resize(20'000, 2.5);
    EXPECT_EQ(moved[9'999], 1.5);
    EXPECT_EQ(copy[19'999], 2.5);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
}

TEST_F(cccl_thrust, resources_of_different_allocators_and_streams_differ) {
  const auto h = heap(), other = heap();
  const stream s = make_stream();
  EXPECT_TRUE(thrust_allocator<int>(h) == thrust_allocator<int>(h));
  EXPECT_FALSE(thrust_allocator<int>(h) == thrust_allocator<int>(other));
  EXPECT_TRUE(thrust_allocator<int>(h) != thrust_allocator<int>(other));
  EXPECT_FALSE(thrust_allocator<int>(h) == thrust_allocator<int>(h, s));
  const thrust_allocator<int> ints(h);
  EXPECT_EQ(thrust_allocator<char>(ints).owner(), ints.owner());
  // Assignment across allocators: the blocks go back where they came from.
  {
    vector<int> a(1000, 1, ints), b(1000, 2, thrust_allocator<int>(other));
    a = b;
    EXPECT_EQ(a[999], 2);
    a.swap(b);
    b = std::move(a);
    EXPECT_EQ(b[0], 2);
  }
  EXPECT_EQ(live(*h), 0u);
  EXPECT_EQ(live(*other), 0u);
}

TEST_F(cccl_thrust, a_vector_that_cannot_grow_throws_and_keeps_its_elements) {
  const auto h = heap(4 * page());
  {
    vector<char> v(page(), 'x', thrust_allocator<char>{h});
    try {
      v.resize(20 * page());
      ADD_FAILURE() << "more than the limit";
    } catch (const std::bad_alloc &e) {
      EXPECT_NE(std::string(e.what()).find("limit"), std::string::npos) << e.what();
    }
    EXPECT_EQ(v.size(), page());
    EXPECT_EQ(v[page() - 1], 'x');
  }
  EXPECT_EQ(live(*h), 0u);
}

TEST_F(cccl_thrust, a_resource_by_itself) {
  const auto h = heap();
  const stream s = make_stream();
  thrust_resource r(h, s);
  thrust::mr::memory_resource<thrust::device_ptr<void>> &base = r;
  EXPECT_EQ(base.allocate(0).get(), nullptr);
  base.deallocate(thrust::device_ptr<void>(), 0);
  EXPECT_THROW((void)base.allocate(8, 3), std::bad_alloc);
  const auto block = base.allocate(1000, 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.get()) % 4096, 0u);
  EXPECT_TRUE(h->owns(block.get()));
  base.deallocate(block, 1000, 4096);
  EXPECT_TRUE(base.is_equal(r));
  EXPECT_THROW(thrust_resource(nullptr), std::invalid_argument);
  EXPECT_THROW(thrust_allocator<int>(nullptr), std::invalid_argument);
}

}  // namespace
}  // namespace stillmap

#endif
