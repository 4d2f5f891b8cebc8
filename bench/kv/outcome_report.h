// What was measured, for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "bench/kv/measure.h"

namespace stillmap::kv_bench {

// `of`: the name of the trace.
std::string readable(const std::vector<policy_outcome> &all, const serving_model &m,
                     const std::string &of, bool markdown);
// Seconds, and bytes of live and cached tokens and bytes held by each policy.
std::string csv(const std::vector<policy_outcome> &all);
// As Google Benchmark writes it, for tools/bench_table.py.
std::string json(const std::vector<policy_outcome> &all, const std::string &of, bool is_smoke);
result<std::string> svg(const std::vector<policy_outcome> &all, const serving_model &m,
                        const std::string &of);

}  // namespace stillmap::kv_bench
