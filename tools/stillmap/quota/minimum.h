// Whether the minimum of a participant fits into a quota, before the quota is asked.
#pragma once

#include <cstdint>
#include <string>

#include "stillmap/allocators/quota_types.h"
#include "tools/stillmap/common/outcome.h"

namespace stillmap::tool {

// `process`: whose terms change; 0: of one that is to take part. The message begins with `subject`.
// Errors: exit_failed (the minima of the others leave less of the limit). What contradicts itself, the quota refuses.
outcome<void> check_minimum(const std::string &subject, const quota_terms &terms,
                            const quota_stats &now, std::uint32_t process = 0);

}  // namespace stillmap::tool
