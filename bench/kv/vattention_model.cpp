// vAttention (microsoft/vattention, vattention/vattention.cu and cudaInternal.h): each tensor of each layer has a
// range of addresses for each place in the batch, so a page holds tokens of one request, layer and tensor. The pages of
// one position of all tensors, a KV block, are mapped together. Prompts are mapped before a step, the next token's
// block in the background. An ended request's pages stay at its place for the next one; a step that maps nothing
// unmaps one KV block of an empty place, but none of the place that the next request gets. Requests share no pages.
// Where it is not known what vAttention does, the model has what holds less: the place that fits best for a new
// request, no pages ahead of need, pages that are not mapped count as given back (it creates all of them at start),
// and unmapping also goes on while there are no requests.
#include <algorithm>
#include <utility>

#include "bench/kv/peer_models.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t small_page_bytes = std::size_t{64} << 10;
// Pages below 2 MiB need vAttention's driver, whose one call maps a page in about 8 us and releases one in 2 (its
// paper, table 3).
constexpr double small_map_ns = 8000, small_unmap_ns = 2000;

class vattention_model final : public cache_policy {
 public:
  vattention_model(const serving_model &m, std::size_t page_bytes)
      : pages_(std::uint64_t{m.shape.layers} * m.shape.tensors),
        block_bytes_(pages_ * page_bytes),
        block_tokens_(page_bytes / m.shape.token_bytes),
        is_small_(page_bytes == small_page_bytes),
        map_("cuMemMap"),
        access_("cuMemSetAccess", page_bytes),
        unmap_("cuMemUnmap"),
        places_(m.batch),
        place_of_(m.batch),
        shared_of_(m.batch),
        most_blocks_(m.tokens() / block_tokens_) {
    call_price("cuMemCreate", page_bytes).charge(start_.calls, most_blocks_ * pages_);
  }

  start_costs start() const override { return start_; }
  std::uint64_t held_bytes() const override { return mapped_ * block_bytes_; }
  std::uint64_t doubled_tokens() const override { return doubled_; }

  result<step_costs> step(const step_events &events) override {
    step_costs costs;
    const std::uint64_t mapped = mapped_;
    for (const step_events::part &p : events.computed) {
      if (!p.is_new) add_doubled(p.sequence, prefix_tokens);
    }
    for (const sequence_number s : events.ended) {
      places_[place_of_[s]].tokens = 0;
      doubled_ -= std::exchange(shared_of_[s], 0);
    }
    for (const step_events::begin &b : events.begun) {
      place_of_[b.sequence] = best_place(growth_of(events, b.sequence));
      places_[place_of_[b.sequence]].tokens = 1;
      add_doubled(b.sequence, b.shared.size() * prefix_tokens);
    }
    for (const step_events::growth &g : events.grown) {
      place &p = places_[place_of_[g.sequence]];
      const bool is_next_token = p.tokens + 1 == g.tokens;
      p.tokens = g.tokens;
      const std::uint64_t needed = (g.tokens + block_tokens_ - 1) / block_tokens_;
      if (needed > p.blocks)
        map(p, needed - p.blocks, is_next_token ? costs.background : costs.begin);
    }
    if (mapped_ == mapped) unmap_one(costs.background);
    return costs;
  }

  result<step_costs> idle() override {
    step_costs costs;
    unmap_one(costs.background);
    return costs;
  }

 private:
  struct place {
    std::uint64_t tokens = 0;  // 0: it is empty
    std::uint64_t blocks = 0;  // mapped
  };

  static std::uint32_t growth_of(const step_events &events, sequence_number s) {
    for (const step_events::growth &g : events.grown) {
      if (g.sequence == s) return g.tokens;
    }
    return 0;
  }

  void add_doubled(sequence_number s, std::uint64_t tokens) {
    shared_of_[s] += tokens;
    doubled_ += tokens;
  }

  // The empty place with the fewest blocks that suffice, or with the most.
  std::uint32_t best_place(std::uint32_t tokens) const {
    const std::uint64_t needed = (tokens + block_tokens_ - 1) / block_tokens_;
    std::size_t best = places_.size();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i].tokens != 0) continue;
      if (best == places_.size()) best = i;
      const std::uint64_t here = places_[i].blocks, there = places_[best].blocks;
      const bool is_better = there < needed ? here > there : here >= needed && here < there;
      if (is_better) best = i;
    }
    return static_cast<std::uint32_t>(best);
  }

  void map(place &p, std::uint64_t blocks, call_sum &to) {
    while (mapped_ + blocks > most_blocks_ && unmap_one(to)) {
    }
    p.blocks += blocks;
    mapped_ += blocks;
    if (is_small_) {
      to += {blocks * pages_, static_cast<double>(blocks * pages_) * small_map_ns};
    } else {
      map_.charge(to, blocks * pages_);
      access_.charge(to, blocks * pages_);
    }
  }

  // Of the last empty place with blocks, but not of the first empty place.
  bool unmap_one(call_sum &to) {
    const auto is_empty = [](const place &p) { return p.tokens == 0; };
    const auto next = std::find_if(places_.begin(), places_.end(), is_empty);
    for (auto p = places_.end(); p != places_.begin();) {
      --p;
      if (p == next || !is_empty(*p) || p->blocks == 0) continue;
      --p->blocks;
      --mapped_;
      if (is_small_) {
        to += {pages_, static_cast<double>(pages_) * small_unmap_ns};
      } else {
        unmap_.charge(to, pages_);
      }
      return true;
    }
    return false;
  }

  const std::uint64_t pages_, block_bytes_, block_tokens_;  // of a KV block
  const bool is_small_;
  const call_price map_, access_, unmap_;
  std::vector<place> places_;
  std::vector<std::uint32_t> place_of_;   // of a sequence
  std::vector<std::uint64_t> shared_of_;  // tokens that others have, too
  const std::uint64_t most_blocks_;
  start_costs start_;
  std::uint64_t mapped_ = 0, doubled_ = 0;
};

}  // namespace

result<std::unique_ptr<cache_policy>> make_vattention(const device &, const serving_model &m,
                                                      std::uint32_t) {
  return std::make_unique<vattention_model>(m, std::size_t{2} << 20);
}

result<std::unique_ptr<cache_policy>> make_vattention_small(const device &, const serving_model &m,
                                                            std::uint32_t) {
  return std::make_unique<vattention_model>(m, small_page_bytes);
}

}  // namespace stillmap::kv_bench
