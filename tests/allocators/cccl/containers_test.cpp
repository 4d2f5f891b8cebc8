// Containers on cccl::memory_resource: a small one of the test on a resource_ref, in every dialect, and
// cuda::buffer, which a host compiler takes from CCCL 3.4 on (before: nvcc, kernels_check.cu). And
// Stillmap's own vector as the views of libcu++.
#include <gtest/gtest.h>

#ifdef STILLMAP_HAVE_CCCL

#include <cuda/std/mdspan>
#include <cuda/std/span>
#if CCCL_VERSION >= 3004000
#include <cuda/buffer>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "stillmap/allocators/cccl/memory_resource.h"
#include "stillmap/vmm/device_vector.h"
#include "tests/allocators/cccl/dialect.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

using cccl::memory_resource;
using testing::allocate;
using testing::deallocate;
using testing::device_accessible;

class cccl_containers : public testing::buffer_test {
 protected:
  std::shared_ptr<caching_allocator> heap() const {
    auto made = caching_allocator::create(dev());
    if (!made) throw std::runtime_error(made.error().message());
    return std::move(*made);
  }
  static device_address address(const void *p) {
    return device_address(reinterpret_cast<std::uintptr_t>(p));
  }
};

// A vector of bytes in device memory that grows by copying, as containers do that know a resource only.
class byte_array {
 public:
  byte_array(const device &d, testing::async_ref r, stream_ref s) : device_(d), from_(r), s_(s) {}
  byte_array(const byte_array &) = delete;
  byte_array &operator=(const byte_array &) = delete;
  ~byte_array() { drop(); }

  void append(const std::vector<unsigned char> &bytes) {
    auto all = size_ == 0 ? std::vector<unsigned char>() : testing::get(device_, address(), size_);
    all.insert(all.end(), bytes.begin(), bytes.end());
    if (all.size() > capacity_) {
      const std::size_t larger = 2 * all.size();
      void *const at = allocate(from_, s_, larger);
      drop();
      at_ = at;
      capacity_ = larger;
    }
    size_ = all.size();
    testing::put(device_, address(), all);
  }
  device_address address() const { return device_address(reinterpret_cast<std::uintptr_t>(at_)); }
  std::size_t size() const { return size_; }

 private:
  void drop() { deallocate(from_, s_, at_, capacity_); }

  device device_;
  testing::async_ref from_;
  stream_ref s_;
  void *at_ = nullptr;
  std::size_t size_ = 0, capacity_ = 0;
};

TEST_F(cccl_containers, one_that_knows_a_resource_ref_allocates_grows_and_frees) {
  const stream s = make_stream();
  const auto h = heap();
  memory_resource r(h);
  const std::vector<unsigned char> whole = testing::pattern(300'000, 5);
  {
    byte_array a(dev(), r, s);
    for (std::size_t at = 0; at < whole.size(); at += 1000) {
      a.append({whole.begin() + std::ptrdiff_t(at), whole.begin() + std::ptrdiff_t(at) + 1000});
    }
    EXPECT_EQ(a.size(), whole.size());
    EXPECT_TRUE(testing::holds(dev(), a.address(), whole.size(), 5));
  }
  EXPECT_EQ(h->stats().total.live, 0u);
}

TEST_F(cccl_containers, a_device_vector_is_a_span_and_an_mdspan_of_libcu) {
  STILLMAP_NEEDS_VMM();
  auto made = device_vector<int>::create(dev());
  ASSERT_TRUE(made) << made.error().message();
  ASSERT_DONE(made->resize(12));
  const cuda::std::span<int> whole(*made);
  EXPECT_EQ(whole.data(), made->data());
  EXPECT_EQ(whole.size(), 12u);
  const cuda::std::span<const int> of_view(made->span());
  EXPECT_EQ(of_view.data(), made->data());
  EXPECT_EQ(of_view.size(), 12u);
  const auto constant = cuda::std::span<const int>(std::as_const(*made));
  EXPECT_EQ(constant.size(), 12u);
  const device_span<int> back(whole.data(), whole.size());
  EXPECT_EQ(back.size_bytes(), 12 * sizeof(int));

  const cuda::std::mdspan<int, cuda::std::dextents<int, 2>> table(made->data(), 3, 4);
  EXPECT_EQ(table.extent(0), 3);
  EXPECT_EQ(table.extent(1), 4);
  EXPECT_EQ(table.data_handle(), made->data());
  ASSERT_DONE(made->resize(1'000'000));
  EXPECT_EQ(whole.data(), made->data()) << "growth moves nothing, so views stay valid";
}

#if CCCL_VERSION >= 3004000
using buffer = cuda::buffer<int, device_accessible>;

std::vector<int> contents(const device &d, const buffer &b) {
  const auto bytes = testing::get(d, device_address(reinterpret_cast<std::uintptr_t>(b.data())),
                                  b.size() * sizeof(int));
  std::vector<int> out(b.size());
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

TEST_F(cccl_containers, a_cuda_buffer_allocates_grows_and_frees) {
  const stream s = make_stream();
  const auto h = heap();
  {
    memory_resource r(h);
    std::vector<int> numbers(1000);
    std::iota(numbers.begin(), numbers.end(), 1);
    buffer small(testing::cuda_stream(s), r, numbers);
    EXPECT_TRUE(h->owns(small.data()));
    EXPECT_EQ(contents(dev(), small), numbers);
    // A cuda::buffer has one size: it grows by being made again.
    for (std::size_t size = 2000; size <= 64'000; size *= 2) {
      numbers.resize(size, int(size));
      buffer large(testing::cuda_stream(s), small.memory_resource(), numbers);
      small = std::move(large);
      EXPECT_EQ(contents(dev(), small), numbers);
    }
    const buffer copy(small);
    EXPECT_NE(copy.data(), small.data());
    EXPECT_EQ(contents(dev(), copy), numbers);
    const cuda::std::span<int> view(small.data(), small.size());
    EXPECT_EQ(view.size(), numbers.size());
  }
  EXPECT_EQ(h->stats().total.live, 0u);
}

TEST_F(cccl_containers, a_cuda_buffer_outlives_all_other_owners) {
  const stream s = make_stream();
  buffer b = [&] {
    memory_resource r(heap());
    return buffer(testing::cuda_stream(s), r, std::vector<int>{1, 2, 3});
  }();
  EXPECT_EQ(contents(dev(), b), (std::vector<int>{1, 2, 3}));
}

TEST_F(cccl_containers, make_buffer_finds_the_properties) {
  const stream s = make_stream();
  memory_resource r(heap());
  const auto b = cuda::make_buffer<int>(testing::cuda_stream(s), r, std::vector<int>{4, 5});
  static_assert(std::is_same_v<std::remove_const_t<decltype(b)>, buffer>);
  EXPECT_EQ(contents(dev(), b), (std::vector<int>{4, 5}));
}
#endif

}  // namespace
}  // namespace stillmap

#endif
