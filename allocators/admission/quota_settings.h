// Changes of the limit and of terms, and what a quota says of itself: each within a transaction. Internal.
// docs/sharing.md#changes-while-it-runs
#pragma once

#include <cstdint>
#include <optional>

#include "stillmap/allocators/admission/quota_ledger.h"
#include "stillmap/allocators/admission/quota_table.h"
#include "stillmap/allocators/quota_types.h"

namespace stillmap {

// As shared_quota's functions of these names.
class quota_settings {
 public:
  quota_settings(quota_ledger &l, quota_table &t) : ledger_(l), table_(t) {}

  result<quota_change> set_limit(std::uint64_t bytes, std::optional<std::uint64_t> if_revision);
  result<quota_change> set_terms(std::uint32_t process, const quota_terms &terms,
                                 std::optional<std::uint64_t> if_revision);
  // But what only the participant itself knows. May run out of host memory.
  quota_stats stats() const;

 private:
  status check_revision(std::optional<std::uint64_t> expected) const;
  status count_change();

  quota_ledger &ledger_;
  quota_table &table_;
};

}  // namespace stillmap
