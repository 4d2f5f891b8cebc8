// kv::sequence_arena: a request that begins with a cached prefix is a fork of a sequence that has it. Sequences that
// have ended stay while they alone have a cached prefix.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "bench/kv/arena_mode.h"
#include "stillmap/allocators/kv/sequence_arena.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t most_ended = 512;  // sequences that stay for their prefixes

class sequence_mode final : public arena_mode<kv::sequence_arena, kv::sequence_arena_options> {
 public:
  sequence_mode(const device &d, std::shared_ptr<page_pool> pool, stream s, std::uint32_t batch)
      : arena_mode(d, std::move(pool), std::move(s)), live_(batch) {}

  result<step_costs> step(const step_events &events) override {
    meter_.lap();
    for (const step_events::part &p : events.computed) {
      holder &h = *live_[p.sequence];
      h.path.push_back(p.id);
      h.is_doubled.push_back(!p.is_new);
      if (!p.is_new) ++doubled_;
      holders_[p.id].push_back(&h);
    }
    for (const sequence_number s : events.ended) STILLMAP_RETURN_IF_ERROR(end(live_[s]));
    STILLMAP_RETURN_IF_ERROR(evict(events.evicted));
    for (const step_events::begin &b : events.begun) STILLMAP_RETURN_IF_ERROR(begin(b));
    for (const step_events::growth &g : events.grown) {
      STILLMAP_RETURN_IF_ERROR(arena_->reserve(live_[g.sequence]->id, g.tokens));
    }
    STILLMAP_ASSIGN_OR_RETURN(step_costs costs, begin_step());
    for (const step_events::growth &g : events.grown) {
      if (arena_->capacity(live_[g.sequence]->id) >= g.tokens) continue;
      return make_error(errc::out_of_memory, "a sequence has less memory than it asked for",
                        g.tokens, arena_->capacity(live_[g.sequence]->id), error_unit::items);
    }
    costs.inside = meter_.lap();
    return costs;
  }

  result<step_costs> idle() override {
    meter_.lap();
    return begin_step();
  }

 private:
  // A sequence of the arena: of a request, or what is left of one.
  struct holder {
    kv::sequence_id id{};
    std::vector<prefix_id> path;   // parts of its prompt, that others may share
    std::vector<bool> is_doubled;  // it has computed what another has, too
  };
  using holder_ptr = std::unique_ptr<holder>;

  result<step_costs> begin_step() {
    return arena_mode::begin_step([&] { return arena_->prepare(stream_); },
                                  [&] { return arena_->begin_step(stream_); });
  }

  status begin(const step_events::begin &b) {
    auto h = std::make_unique<holder>();
    if (b.shared.empty()) {
      STILLMAP_ASSIGN_OR_RETURN(h->id, arena_->add());
    } else {
      const holder &of = *holders_.at(b.shared.back()).front();
      STILLMAP_ASSIGN_OR_RETURN(h->id, arena_->fork(of.id, b.shared.size() * prefix_tokens));
    }
    h->path = b.shared;
    h->is_doubled.assign(b.shared.size(), false);
    for (const prefix_id p : b.shared) holders_[p].push_back(h.get());
    live_[b.sequence] = std::move(h);
    return {};
  }

  bool is_needed(const holder &h) const {
    return !h.path.empty() && holders_.at(h.path.back()).size() == 1;
  }

  void forget(const holder &h, std::size_t part) {
    if (h.is_doubled[part]) --doubled_;
    const auto at = holders_.find(h.path[part]);
    std::erase(at->second, &h);
    if (at->second.empty()) holders_.erase(at);
  }

  status remove(const holder &h) {
    for (std::size_t i = 0; i < h.path.size(); ++i) forget(h, i);
    return arena_->remove(h.id);
  }

  status end(holder_ptr &slot) {
    holder_ptr h = std::move(slot);
    if (!is_needed(*h)) return remove(*h);
    // It replaces those that have the beginning of its prefix only.
    std::vector<holder_ptr> replaced;
    for (const prefix_id p : h->path) {
      for (const holder *other : holders_.at(p)) {
        const auto at = ended_.find(other);
        if (at == ended_.end() || other->path.back() != p) continue;
        replaced.push_back(std::move(at->second));
        ended_.erase(at);
      }
    }
    for (const holder_ptr &r : replaced) STILLMAP_RETURN_IF_ERROR(remove(*r));
    STILLMAP_RETURN_IF_ERROR(arena_->release_beyond(h->id, h->path.size() * prefix_tokens));
    const holder *const key = h.get();
    ended_.emplace(key, std::move(h));
    return {};
  }

  // The longest prefixes come first, so an evicted part is the last one of all that have it.
  status evict(const std::vector<prefix_id> &parts) {
    std::vector<holder *> shortened;
    for (const prefix_id p : parts) {
      const std::vector<holder *> all = holders_.at(p);
      for (holder *h : all) {
        forget(*h, h->path.size() - 1);
        h->path.pop_back();
        h->is_doubled.pop_back();
        shortened.push_back(h);
      }
    }
    std::sort(shortened.begin(), shortened.end());
    shortened.erase(std::unique(shortened.begin(), shortened.end()), shortened.end());
    for (holder *h : shortened) {
      if (is_needed(*h)) {
        STILLMAP_RETURN_IF_ERROR(arena_->release_beyond(h->id, h->path.size() * prefix_tokens));
        continue;
      }
      STILLMAP_RETURN_IF_ERROR(remove(*h));
      ended_.erase(h);
    }
    return {};
  }

  std::vector<holder_ptr> live_;
  std::unordered_map<const holder *, holder_ptr> ended_;
  std::unordered_map<prefix_id, std::vector<holder *>> holders_;
};

}  // namespace

result<std::unique_ptr<cache_policy>> make_sequence_mode(const device &d, const serving_model &m,
                                                         std::uint32_t longest) {
  STILLMAP_ASSIGN_OR_RETURN(auto pool, page_pool::create(d, {.keep_free = m.pool_bytes}));
  STILLMAP_ASSIGN_OR_RETURN(stream s, stream::create(d));
  auto made = std::make_unique<sequence_mode>(d, pool, std::move(s), m.batch);
  kv::sequence_arena_options options;
  options.shape = m.shape;
  options.longest = longest;
  options.sequences = m.batch + most_ended;
  options.pool = pool;
  if (m.spare_bytes != SIZE_MAX) options.spare_bytes = m.spare_bytes;
  STILLMAP_RETURN_IF_ERROR(made->create(d, std::move(options)));
  return made;
}

}  // namespace stillmap::kv_bench
