// A model of an inference server's memory: each request has a key-value cache that grows with every
// token and is freed when the request is answered. Produces allocator requests with
// their times; needs no device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "stillmap/vmm/base/error.h"

namespace stillmap::replay {

struct serving_request {
  double arrives = 0;                    // seconds
  std::uint32_t prompt = 0, answer = 0;  // tokens
  // Of 512 prompt tokens each, the last of fewer: requests with equal ids begin alike. Empty: not known.
  std::vector<std::uint64_t> prompt_blocks{};
  bool operator==(const serving_request &) const = default;
};

// Recorded requests in the order of arrival, the first at 0: a CSV with a line of
// names, then arrival (a date and time, or seconds), prompt tokens, generated tokens; or one JSON
// object a line with `timestamp` (milliseconds), `input_length`, `output_length` and, if known, `hash_ids`.
// Errors: invalid_argument, with file and line.
result<std::vector<serving_request>> read_requests(const std::string &path);
result<std::vector<serving_request>> parse_requests(std::string_view text, std::string_view name,
                                                    bool json_lines);

// An endless source of requests: those of a file repeatedly, or random ones.
class request_source {
 public:
  // Requires: requests is not empty. `speed`: 2 replays them twice as fast.
  request_source(std::vector<serving_request> requests, double speed);
  // Random arrivals, `rate` a second on average, 1.5 times as many at noon and half as many at
  // midnight; lengths are log-normal, as in tools/serving_trace.py.
  request_source(double rate, std::uint64_t seed);

  serving_request next();

 private:
  std::vector<serving_request> recorded_;
  std::size_t at_ = 0;
  double speed_ = 1, lap_ = 0, began_ = 0;
  double rate_ = 0, now_ = 0;
  std::mt19937_64 dice_;
};

// Times are of a large GPU with a model of 8 billion parameters, roughly: they decide only which
// requests run at the same time.
struct serving_options {
  std::uint64_t token_bytes = std::uint64_t{128} << 10;      // of cache
  std::uint64_t activation_bytes = std::uint64_t{56} << 10;  // of a token, while it is computed
  std::uint64_t weight_bytes = std::uint64_t{16} << 30;  // one block for each layer, never freed
  std::uint64_t cache_bytes = std::uint64_t{100} << 30;  // a request that may need more waits
  std::uint32_t chunk = 64;  // tokens by which a cache grows, each chunk a block of its own
  std::uint32_t layers = 32;
  std::uint32_t piece = 8192;  // tokens of a prompt that are computed at once
  double step_seconds = 0.02;  // one token for each running request
  double prefill_tokens_a_second = 20000;
  bool two_streams = false;  // prompts are computed on a stream of their own
};

enum class serving_verb : std::uint8_t { allocate, free, use };
struct serving_op {
  serving_verb verb = serving_verb::allocate;
  std::uint8_t stream = 0;  // allocate, use: 0 decodes, 1 computes prompts
  std::uint32_t slot = 0;   // small numbers that are reused: an index into the caller's array
  std::uint64_t bytes = 0;  // allocate
};

class server {
 public:
  server(const serving_options &o, request_source requests);

  // Serves until `until` seconds, and appends the requests to an allocator.
  void serve(double until, std::vector<serving_op> &into);
  // Frees all live blocks.
  void stop(std::vector<serving_op> &into);

  std::uint32_t slots() const { return static_cast<std::uint32_t>(bytes_of_.size()); }
  std::uint64_t live_bytes() const { return live_; }
  std::uint64_t peak_bytes() const { return peak_; }
  std::uint64_t answered() const { return answered_; }
  std::size_t running() const { return running_.size(); }
  double behind() const;  // seconds that the next request has waited

 private:
  struct answer {
    std::uint64_t left = 0, fit = 0, tokens = 0;
    std::vector<std::uint32_t> blocks;
  };
  std::uint32_t allocate(std::uint64_t bytes, std::uint8_t stream, std::vector<serving_op> &into);
  void free(std::uint32_t slot, std::vector<serving_op> &into);
  void admit(std::vector<serving_op> &into);
  void step(std::vector<serving_op> &into);
  std::uint64_t most_bytes(std::uint64_t tokens) const {
    return (tokens + options_.chunk) * options_.token_bytes;
  }

  serving_options options_;
  request_source requests_;
  serving_request waiting_;
  std::vector<answer> running_;
  std::vector<std::vector<std::uint32_t>> spare_lists_;
  std::vector<std::uint64_t> bytes_of_;  // by slot
  std::vector<std::uint32_t> free_slots_;
  double now_ = 0;
  bool loaded_ = false;
  std::vector<std::uint32_t> weights_;
  std::uint64_t promised_ = 0, live_ = 0, peak_ = 0, answered_ = 0;
};

}  // namespace stillmap::replay
