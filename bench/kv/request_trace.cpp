#include "bench/kv/request_trace.h"

#include <algorithm>
#include <filesystem>
#include <random>

#include "stillmap/vmm/base/try.h"

namespace stillmap::kv_bench {
namespace {

constexpr std::size_t generated_requests = 2000;
constexpr double requests_a_second = 8;
constexpr std::uint64_t system_prompts = 12;  // that requests begin with

// Lengths are those of request_source; three of four requests begin with a prompt that others have, too.
std::vector<replay::serving_request> generate(std::size_t n, std::uint64_t seed) {
  replay::request_source source(requests_a_second, seed);
  std::mt19937_64 dice(seed);
  std::vector<replay::serving_request> all;
  std::uint64_t next_id = system_prompts << 32;
  while (all.size() < n) {
    replay::serving_request r = source.next();
    const std::uint64_t common = dice() % 4 == 0 ? 0 : 1 + dice() % 4,
                        which = dice() % system_prompts;
    for (std::uint64_t part = 0; part * prefix_tokens < r.prompt; ++part) {
      r.prompt_blocks.push_back(part < common ? (which << 32) + part : next_id++);
    }
    all.push_back(std::move(r));
  }
  return all;
}

}  // namespace

result<std::vector<replay::serving_request>> requests_of(const kv_arguments &given) {
  std::vector<replay::serving_request> all;
  if (given.trace.empty()) {
    all = generate(std::min(given.requests, generated_requests), given.seed);
  } else {
    STILLMAP_ASSIGN_OR_RETURN(all, replay::read_requests(given.trace));
  }
  all.resize(std::min(all.size(), given.requests));
  for (const replay::serving_request &r : all) {
    const std::size_t tokens = std::size_t{r.prompt} + r.answer + 1;
    if (tokens <= given.model.tokens()) continue;
    return make_error(errc::invalid_argument, "a request is longer than the cache", tokens,
                      given.model.tokens(), error_unit::items);
  }
  return all;
}

std::string name_of(const kv_arguments &given) {
  if (given.trace.empty()) return "generated requests";
  return std::filesystem::path(given.trace).stem().string();
}

}  // namespace stillmap::kv_bench
