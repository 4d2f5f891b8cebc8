// The server whose cache is measured, and what its scheduler asks of the cache in each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stillmap/allocators/kv/layout.h"

namespace stillmap::kv_bench {

constexpr std::uint32_t block_tokens = 16;
constexpr std::uint32_t prefix_tokens = 512;  // what requests share is a multiple of it
constexpr std::uint32_t prefix_blocks = prefix_tokens / block_tokens;

struct serving_model {
  kv::shape shape{32, 2, 8 * 128 * 2};  // Llama-3-8B in bf16: 128 KiB a token
  std::size_t cache_bytes = std::size_t{64} << 30;
  double step_seconds = 0.02;
  std::uint32_t prefill_tokens = 1024;  // of all prompts in one step
  std::uint32_t batch = 256;            // sequences
  double idle_seconds = 10;             // after the last answer
  // Of the arenas: their own default where none is given.
  std::size_t spare_bytes = SIZE_MAX;
  std::size_t pool_bytes = 0;  // free pages that their pool keeps

  std::size_t tokens() const {
    return cache_bytes / shape.bytes_per_token() / block_tokens * block_tokens;
  }
};

// A request while it is in the batch; small numbers that are used again.
using sequence_number = std::uint32_t;
using prefix_id = std::uint64_t;

// What changes before a step, in the order of the members.
struct step_events {
  // The sequence has computed this part of its prompt. Others may share it from now on, unless there is the same
  // already.
  struct part {
    sequence_number sequence = 0;
    std::uint32_t index = 0;  // tokens [index * prefix_tokens, + prefix_tokens)
    prefix_id id = 0;
    bool is_new = false;
  };
  struct begin {
    sequence_number sequence = 0;
    std::vector<prefix_id> shared;  // its first tokens are these
  };
  struct growth {
    sequence_number sequence = 0;
    std::uint32_t tokens = 0;  // in all, after the step
  };

  std::vector<part> computed;
  std::vector<sequence_number> ended;  // answered or preempted: what others may share stays cached
  std::vector<prefix_id> evicted;      // no sequence uses it
  std::vector<begin> begun;
  std::vector<growth> grown;

  bool empty() const { return computed.empty() && ended.empty() && grown.empty(); }
  void clear() {
    computed.clear();
    ended.clear();
    evicted.clear();
    begun.clear();
    grown.clear();
  }
};

}  // namespace stillmap::kv_bench
