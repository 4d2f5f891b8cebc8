// vLLM's default: at start each tensor of each layer is allocated for all blocks that there can be, and never given
// back (vLLM 0.33, `--gpu-memory-utilization`).
#include "bench/kv/peer_models.h"

namespace stillmap::kv_bench {

call_price::call_price(const char *function, std::size_t bytes) {
  const replay::call_cost cost = replay::modelled_cost(function);
  ns_ = cost.fixed_ns + cost.ns_per_mib * static_cast<double>(bytes) / (1 << 20);
}

namespace {

class static_model final : public cache_policy {
 public:
  explicit static_model(const serving_model &m)
      : held_(m.tokens() * m.shape.bytes_per_token()), doubled_(m.batch) {
    call_price("cuMemAlloc", held_ / m.shape.layers).charge(start_.calls, m.shape.layers);
  }

  start_costs start() const override { return start_; }
  std::uint64_t held_bytes() const override { return held_; }
  std::uint64_t doubled_tokens() const override { return doubled_.tokens(); }
  result<step_costs> step(const step_events &events) override {
    doubled_.see(events);
    return step_costs{};
  }

 private:
  const std::size_t held_;
  start_costs start_;
  doubled_parts doubled_;
};

}  // namespace

result<std::unique_ptr<cache_policy>> make_static(const device &, const serving_model &m,
                                                  std::uint32_t) {
  return std::make_unique<static_model>(m);
}

}  // namespace stillmap::kv_bench
