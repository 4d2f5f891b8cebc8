// kvcached (ovg-project/kvcached, kvcached/page_allocator.py, kvcached/kv_cache_manager.py, csrc/ftensor.cpp and
// allocator.cpp): blocks of 16 tokens on pages of 2 MiB for each tensor of each layer, which are mapped together: by
// default as one compound page, or each by itself. Blocks come from the fullest page that has all of them, else from
// the emptiest, where no page has any from a reserved one, else from a new one, which is mapped at once. A page without
// used blocks is kept, while fewer than 10 are, or unmapped; a thread maps pages where fewer than 5 are kept. A zero
// page is mapped from the start behind addresses for all of the device's memory. One block is the null block.
// bench/kv/kvcached_itself.py runs kvcached on the same steps. As kvcached's users may choose, cached prefixes stay without a limit (its default is 16,000 tokens), so that it
// serves the same requests as the others.
#include <algorithm>
#include <deque>
#include <list>
#include <unordered_map>

#include "bench/kv/peer_models.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t kvcached_page_bytes = std::size_t{2} << 20;
constexpr std::size_t min_reserved_pages = 5, max_reserved_pages = 10;

class kvcached_model final : public cache_policy {
 public:
  kvcached_model(const serving_model &m, std::uint64_t device_bytes, bool by_layer)
      : tensors_(std::uint64_t{m.shape.layers} * m.shape.tensors),
        page_bytes_(kvcached_page_bytes * tensors_),
        page_blocks_(
            static_cast<std::uint32_t>(kvcached_page_bytes / m.shape.token_bytes / block_tokens)),
        parts_(by_layer ? tensors_ : 1),
        zero_bytes_(by_layer ? kvcached_page_bytes : page_bytes_),
        map_("cuMemMap"),
        access_("cuMemSetAccess", page_bytes_ / parts_),
        unmap_("cuMemUnmap"),
        create_("cuMemCreate", page_bytes_ / parts_),
        release_("cuMemRelease", page_bytes_ / parts_),
        sequences_(m.batch),
        doubled_(m.batch) {
    // Pages more than the cache has: for the null block, and for a step that allocates before it frees.
    const std::uint64_t pages = m.tokens() / block_tokens / page_blocks_ + 2;
    pages_.resize(pages);
    for (std::uint32_t p = 0; p < pages; ++p) unmapped_.push_back(p);
    used_.assign(pages * page_blocks_, 0);
    start_.maps = device_bytes / page_bytes_ * parts_;
    map_.charge(start_.calls, start_.maps);
    access_.charge(start_.calls, start_.maps);
    create_.charge(start_.calls);
    allocate(null_, 1, start_.calls);
    reserve_pages(start_.calls);
    start_.maps += mapped_ * parts_;
  }

  start_costs start() const override { return start_; }
  std::uint64_t held_bytes() const override { return mapped_ * page_bytes_ + zero_bytes_; }
  std::uint64_t doubled_tokens() const override { return doubled_.tokens(); }

  result<step_costs> step(const step_events &events) override {
    step_costs costs;
    doubled_.see(events);
    for (const step_events::part &p : events.computed) {
      if (!p.is_new) continue;
      const auto begin = sequences_[p.sequence].begin() + p.index * prefix_blocks;
      prefixes_[p.id].assign(begin, begin + prefix_blocks);
      for (auto b = begin; b != begin + prefix_blocks; ++b) ++used_[*b];
    }
    for (const sequence_number s : events.ended) {
      free(sequences_[s], costs.begin);
      sequences_[s].clear();
    }
    for (const prefix_id p : events.evicted) {
      free(prefixes_.at(p), costs.begin);
      prefixes_.erase(p);
    }
    for (const step_events::begin &b : events.begun) {
      for (const prefix_id p : b.shared) {
        for (const std::uint32_t block : prefixes_.at(p)) {
          ++used_[block];
          sequences_[b.sequence].push_back(block);
        }
      }
    }
    for (const step_events::growth &g : events.grown) {
      std::vector<std::uint32_t> &blocks = sequences_[g.sequence];
      const std::size_t wanted = (std::size_t{g.tokens} + block_tokens - 1) / block_tokens;
      if (!allocate(blocks, wanted - blocks.size(), costs.begin)) {
        return make_error(errc::out_of_memory, "the model of kvcached has no page left");
      }
    }
    if (is_short_) reserve_pages(costs.background);
    return costs;
  }

  status trim() override {
    call_sum uncounted;
    for (const std::uint32_t p : reserved_) {
      unmap_page(uncounted);
      unmapped_.push_back(p);
    }
    reserved_.clear();
    return {};
  }

 private:
  struct page {
    std::vector<std::uint32_t> free;  // blocks
    std::list<std::uint32_t>::iterator at{};
    bool is_available = false;  // in available_
  };

  void map_page(call_sum &to) {
    ++mapped_;
    unmap_.charge(to, parts_);
    create_.charge(to, parts_);
    map_.charge(to, parts_);
    access_.charge(to, parts_);
  }
  void unmap_page(call_sum &to) {
    --mapped_;
    unmap_.charge(to, parts_);
    map_.charge(to, parts_);
    access_.charge(to, parts_);
    release_.charge(to, parts_);
  }

  void reserve_pages(call_sum &to) {
    is_short_ = false;
    while (reserved_.size() < min_reserved_pages && !unmapped_.empty()) {
      map_page(to);
      reserved_.push_back(unmapped_.front());
      unmapped_.pop_front();
    }
  }

  void make_available(std::uint32_t p) {
    pages_[p].at = available_.insert(available_.end(), p);
    pages_[p].is_available = true;
  }
  void make_unavailable(std::uint32_t p) {
    if (!pages_[p].is_available) return;
    available_.erase(pages_[p].at);
    pages_[p].is_available = false;
  }

  bool allocate(std::vector<std::uint32_t> &to, std::size_t more, call_sum &calls) {
    while (more != 0) {
      if (available_.empty() && !add_page(calls)) return false;
      const std::uint32_t p = best_page(more);
      std::vector<std::uint32_t> &from = pages_[p].free;
      make_unavailable(p);
      for (; more != 0 && !from.empty(); --more) {
        to.push_back(from.back());
        used_[to.back()] = 1;
        from.pop_back();
      }
      if (!from.empty()) make_available(p);
    }
    return true;
  }

  bool add_page(call_sum &calls) {
    std::deque<std::uint32_t> &from = reserved_.empty() ? unmapped_ : reserved_;
    if (from.empty()) return false;
    const std::uint32_t p = from.front();
    if (reserved_.empty()) map_page(calls);
    from.pop_front();
    if (reserved_.size() < min_reserved_pages) is_short_ = true;
    pages_[p].free.clear();
    for (std::uint32_t i = page_blocks_; i-- > 0;) pages_[p].free.push_back(p * page_blocks_ + i);
    make_available(p);
    return true;
  }

  std::uint32_t best_page(std::size_t blocks) const {
    const auto is_better = [&](std::uint32_t a, std::uint32_t b) {
      const std::size_t in_a = pages_[a].free.size(), in_b = pages_[b].free.size();
      if (in_a >= blocks && in_b >= blocks) return in_a < in_b;
      return in_a > in_b;
    };
    return *std::min_element(available_.begin(), available_.end(), is_better);
  }

  void free(const std::vector<std::uint32_t> &blocks, call_sum &calls) {
    for (const std::uint32_t b : blocks) {
      if (--used_[b] != 0) continue;
      const std::uint32_t p = b / page_blocks_;
      make_unavailable(p);
      pages_[p].free.push_back(b);
      if (pages_[p].free.size() < page_blocks_) {
        make_available(p);
      } else if (reserved_.size() < max_reserved_pages) {
        reserved_.push_back(p);
      } else {
        unmap_page(calls);
        unmapped_.push_back(p);
      }
    }
  }

  const std::uint64_t tensors_, page_bytes_;
  const std::uint32_t page_blocks_;
  const std::uint64_t parts_;  // of a page, that are mapped each by itself
  const std::uint64_t zero_bytes_;
  const call_price map_, access_, unmap_, create_, release_;
  std::vector<page> pages_;
  std::list<std::uint32_t> available_;  // pages with used and free blocks; the last used last
  std::deque<std::uint32_t> reserved_, unmapped_;
  std::vector<std::uint32_t> used_;  // references of each block
  std::vector<std::uint32_t> null_;
  std::vector<std::vector<std::uint32_t>> sequences_;
  std::unordered_map<prefix_id, std::vector<std::uint32_t>> prefixes_;
  doubled_parts doubled_;
  start_costs start_;
  std::uint64_t mapped_ = 0;
  bool is_short_ = false;
};

}  // namespace

result<std::unique_ptr<cache_policy>> make_kvcached(const device &d, const serving_model &m,
                                                    std::uint32_t) {
  return std::make_unique<kvcached_model>(m, d.total_memory().bytes(), false);
}

result<std::unique_ptr<cache_policy>> make_kvcached_layers(const device &d, const serving_model &m,
                                                           std::uint32_t) {
  return std::make_unique<kvcached_model>(m, d.total_memory().bytes(), true);
}

}  // namespace stillmap::kv_bench
