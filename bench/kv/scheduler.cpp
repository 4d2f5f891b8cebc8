#include "bench/kv/scheduler.h"

#include <algorithm>
#include <utility>

namespace stillmap::kv_bench {
namespace {

std::size_t blocks_for(std::uint32_t tokens) {
  return (std::size_t{tokens} + block_tokens - 1) / block_tokens;
}

// Of a set of parts that are as old as each other, a prefix is longer than what it begins with.
std::uint32_t deepest_first(std::uint32_t depth) {
  return UINT32_MAX - depth;
}

}  // namespace

scheduler::scheduler(const serving_model &model,
                     const std::vector<replay::serving_request> &requests)
    : model_(model), requests_(requests), blocks_(model.tokens() / block_tokens) {
  for (std::uint32_t n = model.batch; n-- > 0;) free_numbers_.push_back(n);
}

std::uint32_t scheduler::full_parts(const request_state &r) const {
  const std::size_t known = r.of->prompt_blocks.size();
  return static_cast<std::uint32_t>(std::min<std::size_t>(known, r.of->prompt / prefix_tokens));
}

std::size_t scheduler::own_blocks(const running_sequence &s) {
  return blocks_for(s.tokens) - std::size_t{s.parts - s.doubled} * prefix_blocks;
}

std::uint64_t scheduler::live_tokens() const {
  std::uint64_t tokens = (cache_.size() - unused_.size()) * prefix_tokens;
  for (const running_sequence &s : running_) tokens += s.tokens - s.parts * prefix_tokens;
  return tokens;
}

std::uint64_t scheduler::doubled_tokens() const {
  std::uint64_t tokens = 0;
  for (const running_sequence &s : running_) tokens += s.doubled * prefix_tokens;
  return tokens;
}

bool scheduler::next(step_events &events) {
  if (running_.empty() && waiting_.empty() && next_request_ == requests_.size() &&
      outcome_.empty()) {
    return false;
  }
  events.clear();
  std::swap(events, outcome_);
  was_short_ = false;
  prefill_left_ = model_.prefill_tokens;
  decode(events);
  prefill(events);
  if (!was_short_) admit(events);
  note(events);
  finish_step();
  ++steps_;
  return true;
}

// Evicts what no sequence uses until as many blocks are free.
bool scheduler::make_room(std::size_t blocks, step_events &events) {
  while (used_blocks_ + blocks > blocks_) {
    if (unused_.empty()) return false;
    const prefix_id id = std::get<2>(*unused_.begin());
    unused_.erase(unused_.begin());
    cache_.erase(id);
    used_blocks_ -= prefix_blocks;
    events.evicted.push_back(id);
  }
  return true;
}

bool scheduler::grow(running_sequence &s, std::uint32_t tokens, step_events &events) {
  const std::size_t more = blocks_for(tokens) - blocks_for(s.tokens);
  if (!make_room(more, events)) return false;
  used_blocks_ += more;
  s.tokens = tokens;
  events.grown.push_back({s.number, tokens});
  return true;
}

void scheduler::end(running_sequence &s) {
  used_blocks_ -= own_blocks(s);
  for (std::uint32_t i = 0; i < s.parts; ++i) {
    const prefix_id id = s.request.of->prompt_blocks[i];
    cached_part &part = cache_.at(id);
    if (--part.users != 0) continue;
    part.last_use = steps_;
    unused_.insert({part.last_use, deepest_first(part.depth), id});
  }
  free_numbers_.push_back(s.number);
}

void scheduler::preempt_youngest(step_events &events) {
  running_sequence &victim = running_.back();
  // The tokens that it has generated are computed again, as a part of its prompt.
  request_state again = victim.request;
  again.prompt = std::max(again.prompt, victim.tokens);
  waiting_.push_front(again);
  events.ended.push_back(victim.number);
  end(victim);
  running_.pop_back();
  ++preempted_;
  was_short_ = true;
}

// One token for each sequence whose prompt is computed.
void scheduler::decode(step_events &events) {
  for (std::size_t i = 0; i < running_.size(); ++i) {
    if (!running_[i].is_prefilled) continue;
    while (i < running_.size() && !grow(running_[i], running_[i].tokens + 1, events)) {
      preempt_youngest(events);
    }
    if (i < running_.size()) --running_[i].request.left;
  }
}

void scheduler::prefill(step_events &events) {
  for (std::size_t i = 0; i < running_.size() && prefill_left_ != 0; ++i) {
    if (running_[i].is_prefilled) continue;
    const std::uint32_t more =
        std::min(prefill_left_, running_[i].request.prompt - running_[i].tokens);
    while (i < running_.size() && !grow(running_[i], running_[i].tokens + more, events)) {
      preempt_youngest(events);
    }
    if (i < running_.size()) prefill_left_ -= more;
  }
}

// In order, those that have arrived, while all of the next prompt fits.
void scheduler::admit(step_events &events) {
  while (prefill_left_ != 0 && !free_numbers_.empty()) {
    const bool again = !waiting_.empty();
    request_state r;
    if (again) {
      r = waiting_.front();
    } else {
      if (next_request_ == requests_.size() || requests_[next_request_].arrives > seconds()) return;
      r.of = &requests_[next_request_];
      r.prompt = std::max(r.of->prompt, 1u);
      r.left = std::max(r.of->answer, 1u);
    }
    running_sequence s;
    s.request = r;
    const std::uint32_t most = std::min(full_parts(r), (r.prompt - 1) / prefix_tokens);
    std::size_t unused = unused_.size();
    while (s.parts < most) {
      const auto found = cache_.find(r.of->prompt_blocks[s.parts]);
      if (found == cache_.end()) break;
      if (found->second.users == 0) --unused;
      ++s.parts;
    }
    s.tokens = s.parts * prefix_tokens;
    if (used_blocks_ + blocks_for(r.prompt) - blocks_for(s.tokens) >
        blocks_ + unused * prefix_blocks) {
      return;
    }
    if (again) {
      waiting_.pop_front();
    } else {
      ++next_request_;
    }
    s.number = free_numbers_.back();
    free_numbers_.pop_back();
    step_events::begin begun{s.number, {}};
    for (std::uint32_t i = 0; i < s.parts; ++i) {
      const prefix_id id = r.of->prompt_blocks[i];
      cached_part &part = cache_.at(id);
      if (part.users++ == 0) unused_.erase({part.last_use, deepest_first(part.depth), id});
      begun.shared.push_back(id);
    }
    events.begun.push_back(std::move(begun));
    prompt_tokens_ += r.prompt;
    shared_tokens_ += s.tokens;
    running_.push_back(s);
    const std::uint32_t more = std::min(prefill_left_, r.prompt - s.tokens);
    grow(running_.back(), s.tokens + more, events);
    prefill_left_ -= more;
  }
}

void scheduler::publish(running_sequence &s) {
  for (std::uint32_t i = s.parts; i < full_parts(s.request); ++i) {
    const prefix_id id = s.request.of->prompt_blocks[i];
    const auto [at, is_new] = cache_.try_emplace(id);
    // An id that stands for two places of a prompt cannot be shared.
    if (!is_new && at->second.depth != i) break;
    at->second.depth = i;
    if (at->second.users++ == 0 && !is_new) {
      unused_.erase({at->second.last_use, deepest_first(i), id});
    }
    if (!is_new) ++s.doubled;
    ++s.parts;
    outcome_.computed.push_back({s.number, i, id, is_new});
  }
}

void scheduler::finish_step() {
  for (running_sequence &s : running_) {
    if (!s.is_prefilled && s.tokens == s.request.prompt) {
      s.is_prefilled = true;
      --s.request.left;  // its first token of the answer
      publish(s);
    }
  }
  std::erase_if(running_, [&](running_sequence &s) {
    if (!s.is_prefilled || s.request.left != 0) return false;
    outcome_.ended.push_back(s.number);
    end(s);
    ++answered_;
    return true;
  });
}

void scheduler::note(const step_events &events) {
  const auto add = [&](std::uint64_t value) { digest_ = (digest_ ^ value) * 1099511628211u; };
  for (const auto &c : events.computed) add(c.id);
  for (const sequence_number s : events.ended) add(s);
  for (const prefix_id p : events.evicted) add(p);
  for (const auto &b : events.begun) add(b.shared.size());
  for (const auto &g : events.grown) add((std::uint64_t{g.sequence} << 32) | g.tokens);
}

}  // namespace stillmap::kv_bench
