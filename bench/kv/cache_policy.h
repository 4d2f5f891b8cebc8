// A way to have memory for a key-value cache, as the benchmark drives and measures it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/kv/serving_model.h"
#include "stillmap/vmm/base/error.h"
#include "stillmap/vmm/device.h"

namespace stillmap::kv_bench {

// Driver calls, and their time by the cost table.
struct call_sum {
  std::uint64_t calls = 0;
  double ns = 0;

  call_sum &operator+=(const call_sum &more) {
    calls += more.calls;
    ns += more.ns;
    return *this;
  }
};

struct step_costs {
  call_sum background;  // while the step before runs
  call_sum begin;       // between two steps, when nothing runs
  call_sum inside;      // from there to the end of the step
  double begin_cpu_ns = 0;
};

struct start_costs {
  call_sum calls;
  std::uint64_t maps = 0;
};

class cache_policy {
 public:
  virtual ~cache_policy() = default;

  // What it did before the first request.
  virtual start_costs start() const = 0;
  // Prepares the step, begins it, and gives each sequence the memory that it grows into.
  virtual result<step_costs> step(const step_events &events) = 0;
  // A step's time without requests.
  virtual result<step_costs> idle() { return step_costs{}; }
  // Gives back what nobody uses.
  virtual status trim() { return {}; }

  virtual std::uint64_t held_bytes() const = 0;
  // Of it: tokens that are there more than once.
  virtual std::uint64_t doubled_tokens() const = 0;
};

struct policy_kind {
  const char *name;
  const char *what;  // one line, for --help
  bool is_model;     // arithmetic that makes no driver call
  bool keeps_prefixes;
  result<std::unique_ptr<cache_policy>> (*make)(const device &, const serving_model &,
                                                std::uint32_t longest);
};

// `longest`: tokens of the longest sequence.
const std::vector<policy_kind> &policy_kinds();

result<std::unique_ptr<cache_policy>> make_block_mode(const device &d, const serving_model &m,
                                                      std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_sequence_mode(const device &d, const serving_model &m,
                                                         std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_static(const device &d, const serving_model &m,
                                                  std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_vattention(const device &d, const serving_model &m,
                                                      std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_vattention_small(const device &d, const serving_model &m,
                                                            std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_kvcached(const device &d, const serving_model &m,
                                                    std::uint32_t longest);
result<std::unique_ptr<cache_policy>> make_kvcached_layers(const device &d, const serving_model &m,
                                                           std::uint32_t longest);

}  // namespace stillmap::kv_bench
