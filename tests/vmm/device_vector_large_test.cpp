// device_vector: insert and erase move more bytes than their scratch memory holds.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "stillmap/vmm/device_vector.h"
#include "tests/support/buffer_test.h"

namespace stillmap {
namespace {

class device_vector_large : public testing::buffer_test {};

TEST_F(device_vector_large, moves_more_than_fits_its_scratch) {
  vector_options options;
  options.buffer.force_copying = !has_vmm();
  auto made = device_vector<std::uint32_t>::create(dev(), options);
  ASSERT_TRUE(made);
  std::vector<std::uint32_t> wanted((std::size_t{70} << 20) / 4);
  std::iota(wanted.begin(), wanted.end(), 1u);
  ASSERT_TRUE(made->append(wanted));
  const std::vector<std::uint32_t> some{11, 22, 33};
  ASSERT_TRUE(made->insert(5, some));
  wanted.insert(wanted.begin() + 5, some.begin(), some.end());
  EXPECT_TRUE(*made->to_host() == wanted);
  ASSERT_TRUE(made->erase(7, 1000));
  wanted.erase(wanted.begin() + 7, wanted.begin() + 1007);
  EXPECT_TRUE(*made->to_host() == wanted);
}

TEST_F(device_vector_large, scratch_reserves_no_more_than_it_holds) {
  STILLMAP_NEEDS_HOSTCUDA();
  STILLMAP_NEEDS_VMM();
  vector_options options;
  options.buffer.reserve_bytes = page();
  auto made = device_vector<std::uint32_t>::create(dev(), options);
  ASSERT_TRUE(made);
  ASSERT_TRUE(made->append(std::vector<std::uint32_t>(100, 1)));
  std::size_t reserved = 0;
  std::function<void()> look = [&] { reserved = dev().space().stats().reserved_bytes; };
  testing::hostcuda_control::before("cuMemcpyDtoDAsync", 1, look);
  ASSERT_TRUE(made->erase(7, 10));
  EXPECT_EQ(reserved, 2 * page()) << "the vector's own page, and one of scratch";
}

// The second piece is refused: the first is put back.
TEST_F(device_vector_large, puts_back_what_had_moved_when_the_rest_is_refused) {
  STILLMAP_NEEDS_HOSTCUDA();
  vector_options options;
  options.buffer.force_copying = !has_vmm();
  auto made = device_vector<std::uint32_t>::create(dev(), options);
  ASSERT_TRUE(made);
  std::vector<std::uint32_t> values((std::size_t{70} << 20) / 4);
  std::iota(values.begin(), values.end(), 1u);
  ASSERT_TRUE(made->append(values));
  ASSERT_TRUE(made->reserve(values.size() + 3));
  const std::vector<std::uint32_t> some{11, 22, 33};
  for (const std::uint64_t nth : {3u, 4u}) {
    testing::hostcuda_control::fail("cuMemcpyDtoDAsync", nth, CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(made->insert(5, some));
    EXPECT_TRUE(*made->to_host() == values) << "insert, copy " << nth;
  }
  for (const std::uint64_t nth : {1u, 2u, 4u, 5u}) {
    testing::hostcuda_control::fail("cuMemcpyDtoDAsync", nth, CUDA_ERROR_UNKNOWN);
    EXPECT_FALSE(made->erase(7, 1000));
    EXPECT_TRUE(*made->to_host() == values) << "erase, copy " << nth;
  }
}

// The copies that would put the first piece back are refused as well. The caller gets the first error.
TEST_F(device_vector_large, reports_what_could_not_be_put_back) {
  STILLMAP_NEEDS_HOSTCUDA();
  expect_unreturnable();
  vector_options options;
  options.buffer.force_copying = !has_vmm();
  auto made = device_vector<std::uint32_t>::create(dev(), options);
  ASSERT_TRUE(made);
  ASSERT_TRUE(made->append(std::vector<std::uint32_t>((std::size_t{70} << 20) / 4, 1)));
  ASSERT_TRUE(made->reserve(made->size() + 3));
  const std::vector<std::uint32_t> some{11, 22, 33};
  const std::uint64_t reported = background_error_count();
  testing::hostcuda_control::fail_from("cuMemcpyDtoDAsync", 3, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(made->insert(5, some));
  EXPECT_EQ(background_error_count(), reported + 1) << "insert";
  EXPECT_FALSE(made->erase(7, 1000));
  testing::hostcuda_control::stop_failing("cuMemcpyDtoDAsync");
}

}  // namespace
}  // namespace stillmap
