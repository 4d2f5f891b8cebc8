// A model of an inference server: continuous batching with chunked prompts, a cache of prompt prefixes, and
// preemption. It decides by tokens alone, so every policy of memory gets the same steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "bench/kv/serving_model.h"
#include "bench/replay/serving/serving.h"

namespace stillmap::kv_bench {

class scheduler {
 public:
  // Requires: `requests` outlives it, in the order of arrival; no request needs more than model.tokens().
  scheduler(const serving_model &model, const std::vector<replay::serving_request> &requests);

  // What changes before the next step; empty where there is nothing to compute. False: all requests are answered.
  bool next(step_events &events);

  // After the last next():
  double seconds() const { return static_cast<double>(steps_) * model_.step_seconds; }
  std::size_t answered() const { return answered_; }
  std::size_t preempted() const { return preempted_; }
  std::size_t running() const { return running_.size(); }
  std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  std::uint64_t shared_tokens() const { return shared_tokens_; }  // of these: not computed
  // Tokens that are wanted: of sequences, each that is shared once, and of the cache.
  std::uint64_t live_tokens() const;
  std::uint64_t cached_tokens() const { return unused_.size() * prefix_tokens; }
  // Tokens that were computed though the same are shared: two sequences computed them at once.
  std::uint64_t doubled_tokens() const;
  // A number that differs where any event did.
  std::uint64_t digest() const { return digest_; }

 private:
  struct request_state {
    const replay::serving_request *of = nullptr;
    std::uint32_t prompt = 0, left = 0;  // tokens; after a preemption a longer prompt
  };
  struct running_sequence {
    request_state request;
    sequence_number number = 0;
    std::uint32_t tokens = 0;
    std::uint32_t parts = 0;    // of its prompt, that are in the cache
    std::uint32_t doubled = 0;  // of these: that it has computed, too
    bool is_prefilled = false;
  };
  struct cached_part {
    std::uint32_t users = 0, depth = 0;
    std::uint64_t last_use = 0;
  };
  using unused_part = std::tuple<std::uint64_t, std::uint32_t, prefix_id>;

  std::uint32_t full_parts(const request_state &r) const;
  // Blocks of a sequence beside those that the cache has.
  static std::size_t own_blocks(const running_sequence &s);
  bool make_room(std::size_t blocks, step_events &events);
  bool grow(running_sequence &s, std::uint32_t tokens, step_events &events);
  void end(running_sequence &s);
  void preempt_youngest(step_events &events);
  void decode(step_events &events);
  void prefill(step_events &events);
  void admit(step_events &events);
  void publish(running_sequence &s);
  void finish_step();
  void note(const step_events &events);

  const serving_model model_;
  const std::vector<replay::serving_request> &requests_;
  const std::size_t blocks_;
  std::size_t next_request_ = 0;
  std::deque<request_state> waiting_;      // preempted
  std::vector<running_sequence> running_;  // the oldest first
  std::vector<sequence_number> free_numbers_;
  std::unordered_map<prefix_id, cached_part> cache_;
  std::set<unused_part> unused_;  // the least recently used first, and of these the longest prefix
  std::size_t used_blocks_ = 0;
  std::uint32_t prefill_left_ = 0;  // tokens of this step
  bool was_short_ = false;          // this step
  step_events outcome_;             // of the step before
  std::uint64_t steps_ = 0;
  std::size_t answered_ = 0, preempted_ = 0;
  std::uint64_t prompt_tokens_ = 0, shared_tokens_ = 0;
  std::uint64_t digest_ = 14695981039346656037u;
};

}  // namespace stillmap::kv_bench
