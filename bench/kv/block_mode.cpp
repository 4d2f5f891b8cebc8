// kv::block_arena: each sequence has a table of blocks, and so has each cached prefix.
#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "bench/kv/arena_mode.h"
#include "stillmap/allocators/kv/block_arena.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t moved_at_once = 1024;  // blocks, in a step's time without requests

class block_mode final : public arena_mode<kv::block_arena, kv::block_arena_options> {
 public:
  block_mode(const device &d, std::shared_ptr<page_pool> pool, stream s, std::uint32_t batch)
      : arena_mode(d, std::move(pool), std::move(s)), sequences_(batch) {}

  result<step_costs> step(const step_events &events) override {
    meter_.lap();
    for (const step_events::part &p : events.computed) compute(p);
    for (const sequence_number s : events.ended) STILLMAP_RETURN_IF_ERROR(end(sequences_[s]));
    for (const prefix_id p : events.evicted) {
      STILLMAP_RETURN_IF_ERROR(arena_->drop(prefixes_.at(p)));
      prefixes_.erase(p);
    }
    for (const step_events::begin &b : events.begun) STILLMAP_RETURN_IF_ERROR(begin(b));
    growths_.clear();
    for (const step_events::growth &g : events.grown) {
      const std::vector<kv::block_id> &blocks = sequences_[g.sequence].blocks;
      const std::size_t more = blocks_for(g.tokens) - blocks.size();
      if (more == 0) continue;
      growths_.push_back({more, blocks.empty() ? std::nullopt : std::optional(blocks.back())});
    }
    STILLMAP_ASSIGN_OR_RETURN(step_costs costs, begin_step());
    for (const step_events::growth &g : events.grown) {
      std::vector<kv::block_id> &blocks = sequences_[g.sequence].blocks;
      const std::size_t had = blocks.size();
      if (had == blocks_for(g.tokens)) continue;
      const auto last = had == 0 ? std::nullopt : std::optional(blocks.back());
      blocks.resize(blocks_for(g.tokens));
      STILLMAP_RETURN_IF_ERROR(arena_->allocate(std::span(blocks).subspan(had), last));
    }
    costs.inside = meter_.lap();
    return costs;
  }

  result<step_costs> idle() override {
    meter_.lap();
    STILLMAP_ASSIGN_OR_RETURN(const auto moves, arena_->compact(moved_at_once, stream_));
    if (!moves.empty()) rename(moves);
    growths_.clear();
    return begin_step();
  }

 private:
  struct sequence {
    std::vector<kv::block_id> blocks;
    std::vector<bool> is_cached;  // of each part: its blocks are those of prefixes_
  };

  static std::size_t blocks_for(std::uint32_t tokens) {
    return (std::size_t{tokens} + block_tokens - 1) / block_tokens;
  }
  static std::span<const kv::block_id> part(const sequence &s, std::size_t i) {
    return std::span(s.blocks).subspan(i * prefix_blocks, prefix_blocks);
  }

  result<step_costs> begin_step() {
    return arena_mode::begin_step([&] { return arena_->prepare(growths_, stream_); },
                                  [&] { return arena_->begin_step(); });
  }

  void compute(const step_events::part &p) {
    sequence &s = sequences_[p.sequence];
    s.is_cached.push_back(p.is_new);
    if (!p.is_new) ++doubled_;
    const auto blocks = part(s, p.index);
    if (p.is_new) prefixes_[p.id].assign(blocks.begin(), blocks.end());
  }

  status begin(const step_events::begin &b) {
    sequence &s = sequences_[b.sequence];
    for (const prefix_id p : b.shared) {
      const std::vector<kv::block_id> &blocks = prefixes_.at(p);
      s.blocks.insert(s.blocks.end(), blocks.begin(), blocks.end());
    }
    s.is_cached.assign(b.shared.size(), true);
    return arena_->retain(s.blocks);
  }

  status end(sequence &s) {
    using enum kv::block_arena::contents;
    std::size_t i = 0;
    for (; i < s.is_cached.size(); ++i) {
      STILLMAP_RETURN_IF_ERROR(arena_->release(part(s, i), s.is_cached[i] ? keep : drop));
      if (!s.is_cached[i]) --doubled_;
    }
    STILLMAP_RETURN_IF_ERROR(arena_->release(std::span(s.blocks).subspan(i * prefix_blocks), drop));
    s = {};
    return {};
  }

  void rename(const std::vector<kv::block_move> &moves) {
    std::unordered_map<kv::block_id, kv::block_id> to;
    for (const kv::block_move m : moves) to[m.from] = m.to;
    const auto in = [&](std::vector<kv::block_id> &blocks) {
      for (kv::block_id &b : blocks) {
        if (const auto found = to.find(b); found != to.end()) b = found->second;
      }
    };
    for (sequence &s : sequences_) in(s.blocks);
    for (auto &[id, blocks] : prefixes_) in(blocks);
  }

  std::vector<sequence> sequences_;
  std::vector<kv::growth> growths_;  // of the next step
  std::unordered_map<prefix_id, std::vector<kv::block_id>> prefixes_;
};

}  // namespace

result<std::unique_ptr<cache_policy>> make_block_mode(const device &d, const serving_model &m,
                                                      std::uint32_t) {
  STILLMAP_ASSIGN_OR_RETURN(auto pool, page_pool::create(d, {.keep_free = m.pool_bytes}));
  STILLMAP_ASSIGN_OR_RETURN(stream s, stream::create(d));
  auto made = std::make_unique<block_mode>(d, pool, std::move(s), m.batch);
  kv::block_arena_options options;
  options.shape = m.shape;
  options.tokens_per_block = block_tokens;
  // Identifiers cost nothing, and a quarter more of them leaves whole page groups free when all tokens are in use.
  options.blocks = m.tokens() / block_tokens * 5 / 4;
  options.pool = pool;
  if (m.spare_bytes != SIZE_MAX) {
    options.spare_blocks = m.spare_bytes / m.shape.bytes_per_token() / block_tokens;
  }
  STILLMAP_RETURN_IF_ERROR(made->create(d, std::move(options)));
  return made;
}

}  // namespace stillmap::kv_bench
