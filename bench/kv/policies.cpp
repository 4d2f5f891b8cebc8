#include "bench/kv/cache_policy.h"

namespace stillmap::kv_bench {

const std::vector<policy_kind> &policy_kinds() {
  static const std::vector<policy_kind> all = {
      {"blocks", "kv::block_arena, on hostcuda", false, true, make_block_mode},
      {"sequences", "kv::sequence_arena, on hostcuda; prefixes are shared by fork()", false, true,
       make_sequence_mode},
      {"static", "model: everything allocated at start, as vLLM does by default", true, true,
       make_static},
      {"vattention", "model of vAttention on pages of 2 MiB", true, false, make_vattention},
      {"vattention-64k", "the same on pages of 64 KiB, which need its driver", true, false,
       make_vattention_small},
      {"kvcached", "model of kvcached with its default layout: one page for all layers", true, true,
       make_kvcached},
      {"kvcached-layers", "the same with a page for each tensor of each layer", true, true,
       make_kvcached_layers},
  };
  return all;
}

}  // namespace stillmap::kv_bench
