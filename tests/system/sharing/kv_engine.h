// An inference engine whose KV cache shares a device with that of another: requests of a seeded generator, a batch
// that grows a page at a time, and the caches of conversations that are over for now.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "stillmap/allocators/shared_quota.h"
#include "stillmap/vmm/growable_buffer.h"

namespace stillmap::testing {

// Chat requests. Their lengths are distributed as in Microsoft's traces of 2023: log-normal, with a median of 760 tokens
// of context and 150 generated ones. Three in ten go on with an earlier conversation, so that their context begins
// with all of that.
struct kv_request {
  std::uint32_t conversation = 0;
  std::size_t context = 0, generates = 0;  // tokens
};
std::vector<kv_request> kv_requests(std::size_t n, unsigned seed);

struct kv_engine_plan {
  static constexpr std::size_t page_tokens = 64;  // of KV cache in a page
  static constexpr std::size_t step_tokens = 16;  // that a request generates in a step
  static constexpr std::size_t max_batch = 64;    // requests
  // What no request exceeds, and so the minimum with which an engine can always go on. Pages.
  static constexpr std::size_t max_request = 40;
  // How long the device computes: a step, and each token of a context that is not in the cache.
  static constexpr std::chrono::microseconds step_time{3'000}, context_time{2};
};

struct kv_engine_stats {
  std::uint64_t completed = 0, generated = 0, steps = 0;
  std::uint64_t hits = 0;       // requests that found the cache of their conversation
  std::uint64_t paused = 0;     // steps that a request in the batch waited for a page
  std::uint64_t preempted = 0;  // requests that gave up their memory, and began again
  std::uint64_t dropped = 0;    // idle caches that the engine dropped for itself
  std::uint64_t given = 0;      // and for the other engine
  std::size_t peak = 0;         // bytes
  std::chrono::microseconds device_time{0};
};

// Threads: run() is called once. The quota's thread takes idle caches meanwhile.
class kv_engine {
 public:
  kv_engine(const device &d, std::shared_ptr<shared_quota> quota, std::vector<kv_request> requests);
  // Until all requests are done. Returns what went wrong; empty: nothing.
  std::string run();
  const kv_engine_stats &stats() const { return stats_; }

 private:
  struct sequence {
    kv_request request;
    growable_buffer kv;
    std::size_t generated = 0, cached = 0;  // tokens; those in the cache
    bool paused = false;                    // has no page for this step
  };
  struct idle_cache {
    std::uint32_t conversation = 0;
    growable_buffer kv;
    std::size_t cached = 0;
  };

  void grow();
  bool grow(sequence &s);
  void admit();
  bool admit_next();
  void compute();
  void finish();
  void preempt();

  growable_buffer cache_for(const kv_request &r, std::size_t &cached);
  bool extend(growable_buffer &kv, std::size_t pages, std::size_t beside);
  std::uint64_t idle_bytes();
  bool drop_idle();
  void ask(std::size_t pages);
  bool is_asking() const;
  void wait_alone(std::size_t pages);
  std::uint64_t give_back(std::uint64_t bytes);

  void fill(sequence &s, std::size_t tokens);
  bool holds(const sequence &s) const;
  void fail(const std::string &why);

  const device &device_;
  const std::shared_ptr<shared_quota> quota_;
  std::shared_ptr<page_pool> pool_;
  std::deque<kv_request> queue_;
  std::vector<sequence> batch_;  // the oldest first
  std::size_t new_context_ = 0;  // tokens, in this step
  std::future<bool> asks_;       // whether others gave memory
  std::mutex mutex_;             // of the idle caches
  std::list<idle_cache> idle_;   // the one used last is the last
  kv_engine_stats stats_;
  std::string failure_;
  std::unique_ptr<reclaimer_registration> gives_;
};

}  // namespace stillmap::testing
