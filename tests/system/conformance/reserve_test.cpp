// Address ranges: cuMemAddressReserve, cuMemAddressFree.
#include <cstdio>
#include <memory>
#include <vector>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class reserve : public vmm_test {
 protected:
  // Judges a reservation that must be refused, and gives it back should it succeed.
  void expect_refused(int number, const std::string &label, std::size_t bytes,
                      std::size_t alignment, unsigned long long flags,
                      std::initializer_list<CUresult> wanted) {
    CUdeviceptr at = 0;
    const CUresult got = cu().MemAddressReserve(&at, bytes, alignment, 0, flags);
    expect_code(number, label, got, wanted);
    if (got == CUDA_SUCCESS && at != 0) cu().MemAddressFree(at, bytes);
  }
};

bool overlap(CUdeviceptr a, std::size_t an, CUdeviceptr b, std::size_t bn) {
  return a < b + bn && b < a + an;
}

TEST_F(reserve, a02_a_multiple_of_the_granularity_succeeds) {
  for (std::size_t bytes : {page, 3 * page, 1 * gib}) {
    CUdeviceptr at = 0;
    const CUresult got = cu().MemAddressReserve(&at, bytes, 0, 0, 0);
    expect_code(2, std::to_string(bytes) + " bytes", got, {CUDA_SUCCESS});
    if (got != CUDA_SUCCESS) continue;
    EXPECT_NE(at, 0u);
    EXPECT_EQ(cu().MemAddressFree(at, bytes), CUDA_SUCCESS);
  }
}

TEST_F(reserve, a02_a_multiple_of_the_host_page_succeeds) {
  for (std::size_t bytes : {4 * kib, 12 * kib}) {
    CUdeviceptr at = 0;
    const CUresult got = cu().MemAddressReserve(&at, bytes, 0, 0, 0);
    expect_code(2, std::to_string(bytes) + " bytes", got, {CUDA_SUCCESS});
    if (got != CUDA_SUCCESS) continue;
    EXPECT_NE(at, 0u);
    EXPECT_EQ(cu().MemAddressFree(at, bytes), CUDA_SUCCESS);
  }
}

TEST_F(reserve, a03_flags_are_refused) {
  expect_refused(3, "flags 1", page, 0, 1, {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(reserve, a04_power_of_two_alignment_is_honoured) {
  for (std::size_t alignment : {page, 16 * mib, 1 * gib}) {
    CUdeviceptr at = 0;
    const CUresult got = cu().MemAddressReserve(&at, page, alignment, 0, 0);
    expect_code(4, "alignment " + std::to_string(alignment), got, {CUDA_SUCCESS});
    if (got != CUDA_SUCCESS) continue;
    EXPECT_EQ(at % alignment, 0u) << "reserved " << std::hex << at;
    EXPECT_EQ(cu().MemAddressFree(at, page), CUDA_SUCCESS);
  }
}

TEST_F(reserve, a05_a_hint_is_taken_ignored_or_refused) {
  CUdeviceptr was = 0;
  MUST(cu().MemAddressReserve(&was, 4 * page, 0, 0, 0));
  MUST(cu().MemAddressFree(was, 4 * page));
  const auto ask = [&](const char *label, CUdeviceptr hint) -> CUdeviceptr {
    CUdeviceptr at = 0;
    const CUresult got = cu().MemAddressReserve(&at, 4 * page, 0, hint, 0);
    record(5, std::string(label) + ": " +
                  (got != CUDA_SUCCESS ? name_of(got)
                   : at == hint        ? "the hinted address"
                                       : "another address"));
    if (got != CUDA_SUCCESS) return 0;
    EXPECT_NE(at, 0u);
    return at;
  };
  const CUdeviceptr first = ask("hint at a free address", was);
  if (first == 0) return;
  const CUdeviceptr second = ask("hint at a taken address", first);
  if (second != 0) {
    EXPECT_FALSE(overlap(first, 4 * page, second, 4 * page));
    EXPECT_EQ(cu().MemAddressFree(second, 4 * page), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu().MemAddressFree(first, 4 * page), CUDA_SUCCESS);
}

TEST_F(reserve, a06_null_output_is_invalid) {
  IN_A_PROCESS_OF_ITS_OWN();  // a driver that does not check would take the suite with it
  expect_code(6, "output NULL", cu().MemAddressReserve(nullptr, page, 0, 0, 0),
              {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(reserve, a07_zero_bytes_are_refused) {
  expect_refused(7, "0 bytes", 0, 0, 0, {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY});
}

TEST_F(reserve, a08_alignment_not_a_power_of_two_is_refused) {
  expect_refused(8, "alignment 3", page, 3, 0,
                 {CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY});
}

TEST_F(reserve, a09_reservations_overlap_nothing) {
  std::vector<std::pair<CUdeviceptr, std::size_t>> ranges;
  std::vector<std::unique_ptr<reserved>> reservations;
  std::vector<std::unique_ptr<allocated>> allocations;
  for (std::size_t i = 1; i <= 16; ++i) {
    reservations.push_back(std::make_unique<reserved>(i * page));
    ranges.emplace_back(reservations.back()->at, i * page);
    allocations.push_back(std::make_unique<allocated>(i * mib));
    ranges.emplace_back(allocations.back()->at, i * mib);
  }
  for (std::size_t i = 0; i < ranges.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_FALSE(overlap(ranges[i].first, ranges[i].second, ranges[j].first, ranges[j].second))
          << i << " and " << j;
  record(9, "16 reservations and 16 allocations compared");
}

TEST_F(reserve, a10_free_with_another_size_is_refused) {
  reserved range(4 * page);
  expect_code(10, "half the size", cu().MemAddressFree(range.at, 2 * page),
              {CUDA_ERROR_INVALID_VALUE});
  expect_code(10, "from the middle", cu().MemAddressFree(range.at + page, 3 * page),
              {CUDA_ERROR_INVALID_VALUE});
  // The reservation is whole: all of it can still be mapped, and its owner gives it back.
  physical memory(4 * page);
  mapped all(range.at, memory);
  MUST(grant(range.at, range.bytes));
  write_pattern(range.at, range.bytes, 10);
  EXPECT_TRUE(holds_pattern(range.at, range.bytes, 10));
}

TEST_F(reserve, a11_free_twice_is_refused) {
  reserved range(page);
  MUST(cu().MemAddressFree(range.at, page));
  const CUdeviceptr gone = range.at;
  range.forget();
  expect_code(11, "the second free", cu().MemAddressFree(gone, page), {CUDA_ERROR_INVALID_VALUE});
}

TEST_F(reserve, a12_free_under_a_live_mapping) {
  IN_A_PROCESS_OF_ITS_OWN();
  CUdeviceptr at = 0;
  MUST(cu().MemAddressReserve(&at, page, 0, 0, 0));
  physical memory(page);
  MUST(cu().MemMap(at, page, 0, memory.handle, 0));
  MUST(grant(at, page));
  write_pattern(at, page, 12);
  const CUresult freed = cu().MemAddressFree(at, page);
  const bool intact = holds_pattern(at, page, 12);
  const CUresult unmapped = cu().MemUnmap(at, page);
  record(12, "free under a mapping returned " + name_of(freed) + ", data " +
                 (intact ? "intact" : "unreadable") + ", unmap then returned " + name_of(unmapped));
  if (freed != CUDA_SUCCESS) {
    EXPECT_TRUE(intact) << "a refused call must change nothing";
    EXPECT_EQ(cu().MemAddressFree(at, page), CUDA_SUCCESS);
  }
  allocated still_usable(page);
  write_pattern(still_usable.at, page, 13);
  EXPECT_TRUE(holds_pattern(still_usable.at, page, 13));
}

}  // namespace
}  // namespace stillmap::conformance
