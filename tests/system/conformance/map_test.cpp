// cuMemMap: where a handle may be mapped, and that the bytes belong to the handle, not to the
// address.
#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class map : public vmm_test {};

TEST_F(map, a25_an_offset_is_refused) {
  reserved range(2 * page);
  physical memory(2 * page);
  const CUresult got = cu().MemMap(range.at, page, page, memory.handle, 0);
  expect_code(25, "offset of one page", got, {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED});
  if (got == CUDA_SUCCESS) cu().MemUnmap(range.at, page);
}

TEST_F(map, a26_part_of_a_handle) {
  reserved range(2 * page);
  physical memory(2 * page);
  const CUresult got = cu().MemMap(range.at, page, 0, memory.handle, 0);
  record(26, "one page of a handle of two returned " + name_of(got));
  if (got == CUDA_SUCCESS) {
    EXPECT_EQ(grant(range.at, page), CUDA_SUCCESS);
    write_pattern(range.at, page, 26);
    EXPECT_TRUE(holds_pattern(range.at, page, 26));
    EXPECT_EQ(cu().MemUnmap(range.at, page), CUDA_SUCCESS);
  }
  mapped whole(range.at, memory);  // nothing was left behind in the way
}

TEST_F(map, a27_over_a_mapping_is_refused) {
  reserved range(2 * page);
  physical one(page), other(page), large(2 * page);
  mapped first(range.at, one);
  MUST(grant(range.at, page));
  write_pattern(range.at, page, 27);
  expect_code(27, "over a mapping", cu().MemMap(range.at, page, 0, other.handle, 0),
              {CUDA_ERROR_INVALID_VALUE});
  expect_code(27, "partly over a mapping", cu().MemMap(range.at, 2 * page, 0, large.handle, 0),
              {CUDA_ERROR_INVALID_VALUE});
  EXPECT_TRUE(holds_pattern(range.at, page, 27));
  mapped second(range.at + page, other);  // the free half is still free
}

TEST_F(map, a28_outside_a_reservation_is_refused) {
  physical memory(page), large(2 * page);
  CUdeviceptr gone = 0;
  MUST(cu().MemAddressReserve(&gone, page, 0, 0, 0));
  MUST(cu().MemAddressFree(gone, page));
  const CUresult got = cu().MemMap(gone, page, 0, memory.handle, 0);
  expect_code(28, "at a freed reservation", got, {CUDA_ERROR_INVALID_VALUE});
  if (got == CUDA_SUCCESS) cu().MemUnmap(gone, page);
}

TEST_F(map, a29_one_handle_at_two_addresses_aliases) {
  reserved range(4 * page);
  physical memory(page);
  mapped low(range.at, memory), high(range.at + 3 * page, memory);
  MUST(grant(low.at, page));
  MUST(grant(high.at, page));
  write_pattern(low.at, page, 29);
  EXPECT_TRUE(holds_pattern(high.at, page, 29));
  write_pattern(high.at, page, 30);
  EXPECT_TRUE(holds_pattern(low.at, page, 30));
  record(29, "what was written at one address was read at the other, both ways");
}

// How Stillmap moves pages: the new address is mapped before the old one goes.
TEST_F(map, the_second_address_outlives_the_first) {
  reserved range(2 * page);
  physical memory(page);
  mapped later(range.at + page, memory);
  {
    mapped first(range.at, memory);
    MUST(grant(range.at, page));
    write_pattern(range.at, page, 31);
    MUST(cu().MemRelease(memory.handle));
    memory.forget();
    MUST(grant(later.at, page));
  }
  EXPECT_TRUE(holds_pattern(later.at, page, 31));
  EXPECT_EQ(try_read(range.at), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(map, contents_follow_the_handle_to_a_new_address) {
  reserved range(2 * page);
  physical memory(page);
  {
    mapped first(range.at, memory);
    MUST(grant(range.at, page));
    write_pattern(range.at, page, 32);
  }
  mapped second(range.at + page, memory);
  MUST(grant(second.at, page));
  EXPECT_TRUE(holds_pattern(second.at, page, 32));
}

TEST_F(map, flags_are_refused) {
  reserved range(page);
  physical memory(page);
  const CUresult got = cu().MemMap(range.at, page, 0, memory.handle, 1);
  EXPECT_EQ(got, CUDA_ERROR_INVALID_VALUE) << name_of(got);
  if (got == CUDA_SUCCESS) cu().MemUnmap(range.at, page);
}

}  // namespace
}  // namespace stillmap::conformance
