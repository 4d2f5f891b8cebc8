#include "tools/stillmap/quota/minimum.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/stillmap/common/size.h"

namespace stillmap::tool {

outcome<void> check_minimum(const std::string &subject, const quota_terms &terms,
                            const quota_stats &now, std::uint32_t process) {
  std::uint64_t minima = 0;
  for (const quota_participant &p : now.participants) {
    if (process == 0 || p.process != process) minima += p.terms.minimum;
  }
  const std::uint64_t left = now.limit - std::min(now.limit, minima);
  if (terms.minimum <= left || terms.minimum > terms.maximum) return {};
  return fail(exit_failed,
              fmt::format("{}: not enough memory for a minimum of {}: of the limit of {} the "
                          "minima of others leave {}; lower the minimum, or raise the limit: "
                          "stillmap quota set",
                          subject, format_bytes(terms.minimum), format_bytes(now.limit),
                          format_bytes(left)));
}

}  // namespace stillmap::tool
