#include "bench/kv/operations.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <iterator>
#include <span>
#include <unordered_map>

#include "bench/kv/scheduler.h"
#include "bench/replay/simulator.h"

namespace stillmap::kv_bench {
namespace {

using block_name = std::uint64_t;

constexpr const char *priced_calls[] = {
    "cuMemAddressReserve", "cuMemCreate",    "cuMemRelease",    "cuMemMap",
    "cuMemUnmap",          "cuMemSetAccess", "cuCtxSynchronize"};

class operation_writer {
 public:
  explicit operation_writer(std::uint32_t batch) : sequences_(batch) {}

  // The operations of a step, as a line.
  std::string line(const step_events &events) {
    out_.clear();
    for (const step_events::part &p : events.computed) share(p);
    for (const sequence_number s : events.ended) {
      free(sequences_[s]);
      sequences_[s].clear();
    }
    for (const prefix_id p : events.evicted) {
      free(prefixes_.at(p));
      prefixes_.erase(p);
    }
    for (const step_events::begin &b : events.begun) {
      for (const prefix_id p : b.shared) {
        for (const block_name block : prefixes_.at(p)) {
          ++uses_[block];
          sequences_[b.sequence].push_back(block);
        }
      }
    }
    for (const step_events::growth &g : events.grown) allocate(sequences_[g.sequence], g.tokens);
    return out_;
  }

 private:
  void share(const step_events::part &p) {
    if (!p.is_new) return;
    const auto blocks =
        std::span(sequences_[p.sequence]).subspan(p.index * prefix_blocks, prefix_blocks);
    for (const block_name b : blocks) ++uses_[b];
    prefixes_[p.id].assign(blocks.begin(), blocks.end());
  }

  void allocate(std::vector<block_name> &blocks, std::uint32_t tokens) {
    const std::size_t wanted = (std::size_t{tokens} + block_tokens - 1) / block_tokens;
    if (blocks.size() == wanted) return;
    fmt::format_to(std::back_inserter(out_), " a{}", wanted - blocks.size());
    while (blocks.size() < wanted) {
      uses_[next_] = 1;
      blocks.push_back(next_++);
    }
  }

  // One call, as an engine frees a sequence.
  void free(const std::vector<block_name> &blocks) {
    std::string ranges;
    for (std::size_t i = 0; i < blocks.size();) {
      if (!is_last_use(blocks[i])) {
        ++i;
        continue;
      }
      const block_name first = blocks[i];
      block_name last = first;
      for (++i; i < blocks.size() && blocks[i] == last + 1 && uses_.at(blocks[i]) == 1; ++i) {
        uses_.erase(++last);
      }
      ranges += fmt::format("{}{}-{}", ranges.empty() ? "" : ",", first, last);
    }
    if (!ranges.empty()) out_ += fmt::format(" f{}", ranges);
  }
  bool is_last_use(block_name b) {
    const auto found = uses_.find(b);
    if (--found->second != 0) return false;
    uses_.erase(found);
    return true;
  }

  std::string out_;
  block_name next_ = 0;
  std::unordered_map<block_name, std::uint32_t> uses_;
  std::vector<std::vector<block_name>> sequences_;
  std::unordered_map<prefix_id, std::vector<block_name>> prefixes_;
};

std::string head(const serving_model &m) {
  std::string costs;
  for (const char *name : priced_calls) {
    const replay::call_cost c = replay::modelled_cost(name);
    costs += fmt::format("{}\"{}\": [{}, {}]", costs.empty() ? "" : ", ", name, c.fixed_ns,
                         c.ns_per_mib);
  }
  return fmt::format(
      "{{\"layers\": {}, \"tensors\": {}, \"token_bytes\": {}, \"block_tokens\": {}, \"blocks\": "
      "{}, "
      "\"costs\": {{{}}}}}\n",
      m.shape.layers, m.shape.tensors, m.shape.token_bytes, block_tokens, m.tokens() / block_tokens,
      costs);
}

}  // namespace

status write_operations(const std::string &path, const serving_model &m,
                        const std::vector<replay::serving_request> &requests) {
  std::ofstream file(path, std::ios::binary);
  file << head(m);
  scheduler server(m, requests);
  operation_writer writer(m.batch);
  for (step_events events; server.next(events);) {
    const std::string operations = writer.line(events);
    file << (server.live_tokens() + server.cached_tokens()) * m.shape.bytes_per_token()
         << operations << '\n';
  }
  file.close();
  if (file) return {};
  return make_system_error(errno, "cannot write the file", path);
}

}  // namespace stillmap::kv_bench
