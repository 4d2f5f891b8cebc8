#include "bench/replay/replay_target.h"

#include <fmt/format.h>

#include "bench/replay/internal/failure.h"

namespace stillmap::replay {

const std::vector<target_kind> &target_kinds() {
  static const std::vector<target_kind> kinds = {
      {"stillmap", "this project's caching allocator: free pages move to where they are needed",
       true, make_stillmap},
      {"segments", "PyTorch's default policy: whole segments cut into blocks, best fit", true,
       make_segments},
      {"segments-expanding",
       "PyTorch's expandable_segments: one that grows for each stream and size class", true,
       make_expanding_segments},
      {"pool", "the driver's own pool: cuMemAllocAsync, keeping all it has", false, make_pool},
      {"direct", "cuMemAlloc and cuMemFree, nothing kept", false, make_direct},
      {"torch", "PyTorch's own allocator: the library in STILLMAP_TORCH_PEER, docs/traces.md",
       false, make_torch, true},
      {"torch-expanding", "the same with expandable_segments", false, make_torch_expanding, true},
  };
  return kinds;
}

result<const target_kind *> find_target(std::string_view name) {
  std::string known;
  for (const target_kind &k : target_kinds()) {
    if (name == k.name) return &k;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", k.name);
  }
  return fail(errc::invalid_argument,
              fmt::format("there is no allocator '{}'; there are {}", name, known));
}

}  // namespace stillmap::replay
