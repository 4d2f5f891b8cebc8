#include "bench/replay/serving/serving.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace stillmap::replay {
namespace {

constexpr double day = 24 * 3600;

}  // namespace

// ---- requests ----

request_source::request_source(std::vector<serving_request> requests, double speed)
    : recorded_(std::move(requests)), speed_(speed) {
  // The pause between two laps is the mean time between two requests.
  const double last = recorded_.back().arrives;
  lap_ = last + std::max(last, 1.0) / static_cast<double>(recorded_.size());
}

request_source::request_source(double rate, std::uint64_t seed) : rate_(rate), dice_(seed) {}

serving_request request_source::next() {
  if (!recorded_.empty()) {
    if (at_ == recorded_.size()) {
      at_ = 0;
      began_ += lap_;
    }
    serving_request r = recorded_[at_++];
    r.arrives = (began_ + r.arrives) / speed_;
    return r;
  }
  const double busy = 1 - 0.5 * std::cos(2 * std::numbers::pi * now_ / day);  // least at midnight
  now_ += std::exponential_distribution<double>(rate_ * busy)(dice_);
  const auto tokens = [&](double mean, double width, double least, double most) {
    const double n = std::lognormal_distribution<double>(mean, width)(dice_);
    return static_cast<std::uint32_t>(std::clamp(n, least, most));
  };
  serving_request r;
  r.arrives = now_;
  r.prompt = tokens(6.7, 1.0, 8, 14000);
  r.answer = tokens(5.0, 0.8, 2, 1500);
  return r;
}

// ---- the server ----

server::server(const serving_options &o, request_source requests)
    : options_(o), requests_(std::move(requests)), waiting_(requests_.next()) {}

double server::behind() const {
  return std::max(0.0, now_ - waiting_.arrives);
}

std::uint32_t server::allocate(std::uint64_t bytes, std::uint8_t stream,
                               std::vector<serving_op> &into) {
  std::uint32_t slot = slots();
  if (free_slots_.empty()) {
    bytes_of_.push_back(bytes);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
    bytes_of_[slot] = bytes;
  }
  live_ += bytes;
  peak_ = std::max(peak_, live_);
  into.push_back({serving_verb::allocate, stream, slot, bytes});
  return slot;
}

void server::free(std::uint32_t slot, std::vector<serving_op> &into) {
  live_ -= bytes_of_[slot];
  free_slots_.push_back(slot);
  into.push_back({serving_verb::free, 0, slot, 0});
}

// Admits the requests that have arrived, while the cache has room for their largest size.
void server::admit(std::vector<serving_op> &into) {
  const std::uint8_t prompts = options_.two_streams ? 1 : 0;
  while (waiting_.arrives <= now_) {
    const std::uint64_t most = most_bytes(std::uint64_t{waiting_.prompt} + waiting_.answer);
    if (!running_.empty() && promised_ + most > options_.cache_bytes) return;
    promised_ += most;
    answer r;
    if (!spare_lists_.empty()) {
      r.blocks = std::move(spare_lists_.back());
      spare_lists_.pop_back();
    }
    r.left = std::max<std::uint32_t>(1, waiting_.answer);
    r.fit = r.tokens = std::max<std::uint32_t>(1, waiting_.prompt);
    r.blocks.push_back(allocate(r.tokens * options_.token_bytes, prompts, into));
    for (std::uint64_t done = 0; done < r.tokens; done += options_.piece) {
      const std::uint64_t now = std::min<std::uint64_t>(options_.piece, r.tokens - done);
      free(allocate(now * options_.activation_bytes, prompts, into), into);
    }
    // From now on the decoding stream reads it.
    if (prompts != 0) into.push_back({serving_verb::use, 0, r.blocks.back(), 0});
    now_ += static_cast<double>(r.tokens) / options_.prefill_tokens_a_second;
    running_.push_back(std::move(r));
    waiting_ = requests_.next();
  }
}

void server::step(std::vector<serving_op> &into) {
  free(allocate(running_.size() * options_.activation_bytes, 0, into), into);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    answer &r = running_[i];
    if (r.tokens == r.fit) {
      r.blocks.push_back(allocate(options_.chunk * options_.token_bytes, 0, into));
      r.fit += options_.chunk;
    }
    ++r.tokens;
    if (--r.left != 0) {
      if (kept != i) std::swap(running_[kept], r);
      ++kept;
      continue;
    }
    for (const std::uint32_t slot : r.blocks) free(slot, into);
    r.blocks.clear();
    spare_lists_.push_back(std::move(r.blocks));
    ++answered_;
  }
  running_.resize(kept);
  promised_ = 0;
  for (const answer &r : running_) promised_ += most_bytes(r.tokens + r.left);
  now_ += options_.step_seconds;
}

void server::serve(double until, std::vector<serving_op> &into) {
  if (!loaded_) {
    loaded_ = true;
    for (std::uint32_t i = 0; i < options_.layers && options_.weight_bytes != 0; ++i) {
      weights_.push_back(allocate(options_.weight_bytes / options_.layers, 0, into));
    }
  }
  while (now_ < until) {
    if (running_.empty() && waiting_.arrives > now_) {
      now_ = std::min(waiting_.arrives, until);
      if (now_ < waiting_.arrives) return;
    }
    admit(into);
    step(into);
  }
}

void server::stop(std::vector<serving_op> &into) {
  for (answer &r : running_) {
    for (const std::uint32_t slot : r.blocks) free(slot, into);
  }
  running_.clear();
  for (const std::uint32_t slot : weights_) free(slot, into);
  weights_.clear();
}

}  // namespace stillmap::replay
