// cuMemUnmap, and what keeps physical memory alive.
#include <string>

#include "tests/system/conformance/child.h"
#include "tests/system/conformance/conformance.h"

namespace stillmap::conformance {
namespace {

class unmap : public vmm_test {};

TEST_F(unmap, a41_one_call_over_adjacent_mappings) {
  reserved range(6 * page);
  physical a(page), b(3 * page), c(2 * page);
  mapped first(range.at, a), second(range.at + page, b), third(range.at + 4 * page, c);
  const CUresult got = cu().MemUnmap(range.at, range.bytes);
  expect_code(41, "one call over three adjacent mappings", got, {CUDA_SUCCESS});
  if (got != CUDA_SUCCESS) return;
  first.forget();
  second.forget();
  third.forget();
  physical whole(range.bytes);
  mapped all(range.at, whole);  // everything is free again
}

TEST_F(unmap, a42_of_part_of_a_mapping_is_refused) {
  reserved range(2 * page);
  physical memory(2 * page);
  mapped all(range.at, memory);
  MUST(grant(range.at, range.bytes));
  write_pattern(range.at, range.bytes, 42);
  expect_code(42, "its first half", cu().MemUnmap(range.at, page), {CUDA_ERROR_INVALID_VALUE});
  expect_code(42, "its second half", cu().MemUnmap(range.at + page, page),
              {CUDA_ERROR_INVALID_VALUE});
  EXPECT_TRUE(holds_pattern(range.at, range.bytes, 42)) << "the mapping must be intact";
}

TEST_F(unmap, a43_over_a_hole) {
  IN_A_PROCESS_OF_ITS_OWN();
  reserved range(3 * page);
  physical a(page), c(page);
  mapped first(range.at, a), third(range.at + 2 * page, c);
  MUST(grant(first.at, page));
  MUST(grant(third.at, page));
  write_pattern(first.at, page, 43);
  write_pattern(third.at, page, 44);
  const CUresult got = cu().MemUnmap(range.at, range.bytes);
  const bool before = holds_pattern(first.at, page, 43), after = holds_pattern(third.at, page, 44);
  record(43, "unmap over mapping, hole, mapping returned " + name_of(got) + "; before the hole: " +
                 (before ? "survives" : "gone") + ", after it: " + (after ? "survives" : "gone"));
  if (!before) first.forget();
  if (!after) third.forget();
  if (got == CUDA_SUCCESS) {
    EXPECT_FALSE(before || after) << "success, but a mapping is left";
  }
}

TEST_F(unmap, a44_of_zero_bytes_is_refused) {
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  write_pattern(range.at, page, 44);
  expect_code(44, "0 bytes", cu().MemUnmap(range.at, 0), {CUDA_ERROR_INVALID_VALUE});
  EXPECT_TRUE(holds_pattern(range.at, page, 44));
}

TEST_F(unmap, a45_a_released_handle_lives_until_its_unmap) {
  reserved range(4 * page);
  physical memory(4 * page);
  mapped all(range.at, memory);
  MUST(grant(range.at, range.bytes));
  write_pattern(range.at, range.bytes, 45);
  MUST(cu().MemRelease(memory.handle));
  memory.forget();
  // Memory wrongly given back would be handed out and written here.
  physical other(4 * page);
  reserved elsewhere(4 * page);
  mapped there(elsewhere.at, other);
  MUST(grant(elsewhere.at, elsewhere.bytes));
  write_pattern(elsewhere.at, elsewhere.bytes, 46);
  EXPECT_TRUE(holds_pattern(range.at, range.bytes, 45));
  record(45, "contents intact after release and after new memory was written");
}

TEST_F(unmap, of_nothing_is_refused) {
  reserved range(page);
  EXPECT_NE(cu().MemUnmap(range.at, page), CUDA_SUCCESS);
}

TEST_F(unmap, a62_ordinary_free_of_vmm_memory_is_refused) {
  IN_A_PROCESS_OF_ITS_OWN();
  reserved range(page);
  physical memory(page);
  mapped all(range.at, memory);
  MUST(grant(range.at, page));
  write_pattern(range.at, page, 62);
  expect_code(62, "cuMemFree", cu().MemFree(range.at), {CUDA_ERROR_INVALID_VALUE});
  EXPECT_TRUE(holds_pattern(range.at, page, 62));
}

}  // namespace
}  // namespace stillmap::conformance
