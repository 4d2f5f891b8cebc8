#include "tests/system/sharing/kv_engine.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "tests/support/buffer_test.h"

namespace stillmap::testing {
namespace {

using plan = kv_engine_plan;

std::size_t kv_pages(std::size_t tokens) {
  return (tokens + plan::page_tokens - 1) / plan::page_tokens;
}

// What the first bytes of a page of a conversation's cache say.
std::vector<unsigned char> page_mark(std::uint32_t conversation, std::size_t page) {
  const std::uint64_t mark = std::uint64_t{conversation} << 32 | page;
  std::vector<unsigned char> out(sizeof mark);
  std::memcpy(out.data(), &mark, sizeof mark);
  return out;
}

}  // namespace

std::vector<kv_request> kv_requests(std::size_t n, unsigned seed) {
  constexpr std::size_t max_context = 1900, max_generated = 600, going_on = 12;
  std::mt19937 random(seed);
  std::lognormal_distribution<double> context(6.63, 0.985), generated(5.02, 0.86);
  const auto length = [&](auto &of, std::size_t least, std::size_t most) {
    return std::clamp(static_cast<std::size_t>(of(random)), least, most);
  };
  std::vector<kv_request> out;
  while (out.size() < n) {
    kv_request r{.conversation = static_cast<std::uint32_t>(out.size() + 1),
                 .context = length(context, 16, max_context),
                 .generates = length(generated, 8, max_generated)};
    if (out.size() >= going_on && random() % 10 < 3) {
      const kv_request &before = out[out.size() - going_on];
      const std::size_t all = before.context + before.generates + r.context / 8;
      if (all <= max_context) {
        r.conversation = before.conversation;
        r.context = all;
      }
    }
    out.push_back(r);
  }
  return out;
}

kv_engine::kv_engine(const device &d, std::shared_ptr<shared_quota> quota,
                     std::vector<kv_request> requests)
    : device_(d), quota_(std::move(quota)), queue_(requests.begin(), requests.end()) {}

std::string kv_engine::run() {
  auto pool = page_pool::create(device_, {.keep_free = 0, .quota = quota_});
  if (!pool) return pool.error().message();
  pool_ = *pool;
  gives_ = quota_->add_reclaimer(reclaim_kind::cached,
                                 [this](std::uint64_t bytes) { return give_back(bytes); });
  if (const status started = quota_->start_thread(); !started) return started.error().message();
  while (failure_.empty() && !(queue_.empty() && batch_.empty())) {
    grow();
    admit();
    compute();
    finish();
  }
  if (asks_.valid()) (void)asks_.get();
  gives_.reset();
  idle_.clear();
  batch_.clear();
  stats_.peak = pool_->stats().peak.bytes();
  return failure_;
}

void kv_engine::fail(const std::string &why) {
  if (failure_.empty()) failure_ = why;
}

// ---- a step ----

// The pages that the batch writes in this step. A request that gets none pauses. Where nothing in the batch goes on, the
// youngest gives up its memory, until the oldest is alone, and stays within the minimum.
void kv_engine::grow() {
  while (failure_.empty() && !batch_.empty()) {
    std::size_t paused = 0;
    for (sequence &s : batch_) {
      s.paused = !grow(s);
      paused += s.paused ? 1 : 0;
    }
    if (paused < batch_.size()) {
      stats_.paused += paused;
      if (paused != 0) ask(paused);
      return;
    }
    if (batch_.size() > 1) {
      preempt();
    } else {
      wait_alone(1);
    }
  }
}

bool kv_engine::grow(sequence &s) {
  const std::size_t n = std::min(s.request.generates - s.generated, plan::step_tokens);
  if (!extend(s.kv, kv_pages(s.cached + n), 0)) return false;
  fill(s, s.cached + n);
  return true;
}

// Those in the batch come first.
void kv_engine::admit() {
  const auto waits = [](const sequence &s) { return s.paused; };
  if (std::any_of(batch_.begin(), batch_.end(), waits)) return;
  while (failure_.empty() && !queue_.empty() && batch_.size() < plan::max_batch && admit_next()) {
  }
}

// Leaves a page for each request that grows. Returns false where the next request has to wait.
bool kv_engine::admit_next() {
  const kv_request r = queue_.front();
  sequence s{.request = r, .kv = cache_for(r, s.cached)};
  const std::size_t pages = kv_pages(r.context), beside = batch_.size();
  if (!extend(s.kv, pages, beside)) {
    if (batch_.empty()) wait_alone(pages - s.kv.mapped_bytes() / pool_->page_bytes());
    if (s.cached == 0) return batch_.empty();
    const std::lock_guard lock(mutex_);
    idle_.push_back({r.conversation, std::move(s.kv), s.cached});
    return batch_.empty();
  }
  stats_.hits += s.cached != 0 ? 1 : 0;
  new_context_ += r.context - s.cached;
  fill(s, r.context);
  // It writes its first tokens in the next step.
  s.paused = false;
  queue_.pop_front();
  batch_.push_back(std::move(s));
  return true;
}

// Begins again later, with what it has generated as a part of its context.
void kv_engine::preempt() {
  sequence s = std::move(batch_.back());
  batch_.pop_back();
  s.request.context += s.generated;
  s.request.generates -= s.generated;
  queue_.push_front(s.request);
  ++stats_.preempted;
}

void kv_engine::compute() {
  const auto time = plan::step_time + new_context_ * plan::context_time;
  std::this_thread::sleep_for(time);
  stats_.device_time += time;
  new_context_ = 0;
  ++stats_.steps;
  for (sequence &s : batch_) {
    const std::size_t written = s.request.context + s.generated;
    stats_.generated += s.cached - written;
    s.generated += s.cached - written;
  }
}

void kv_engine::finish() {
  const auto is_done = [](const sequence &s) { return s.generated == s.request.generates; };
  bool any = false;
  for (sequence &s : batch_) {
    if (!is_done(s)) continue;
    if (!holds(s)) fail("the cache of a request has other contents");
    any = true;
    ++stats_.completed;
    const std::lock_guard lock(mutex_);
    idle_.push_back({s.request.conversation, std::move(s.kv), s.cached});
  }
  std::erase_if(batch_, is_done);
  // For one that asked when nothing was idle.
  if (any && !quota_->retry_reclaim()) fail("retry_reclaim");
}

// ---- memory ----

growable_buffer kv_engine::cache_for(const kv_request &r, std::size_t &cached) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const idle_cache &c) {
      return c.conversation == r.conversation && c.cached <= r.context;
    });
    if (found != idle_.end()) {
      growable_buffer kv = std::move(found->kv);
      cached = found->cached;
      idle_.erase(found);
      return kv;
    }
  }
  cached = 0;
  auto made = growable_buffer::create(
      device_, {.reserve_bytes = plan::max_request * pool_->page_bytes(), .pools = {pool_}});
  if (!made) throw std::runtime_error(made.error().message());
  return std::move(*made);
}

// Drops idle caches of this engine where that is enough. Pages `beside` stay free.
bool kv_engine::extend(growable_buffer &kv, std::size_t pages, std::size_t beside) {
  const std::uint64_t bytes = pages * pool_->page_bytes();
  if (bytes <= kv.mapped_bytes() && beside == 0) return true;
  for (;;) {
    const std::uint64_t ready = pool_->stats().free.bytes() + kv.mapped_bytes();
    const std::uint64_t wanted = bytes + beside * pool_->page_bytes();
    const std::uint64_t missing = wanted - std::min(wanted, ready);
    if (const status there = quota_->reserve(missing); !there) {
      if (there.error().limit + idle_bytes() < missing || !drop_idle()) return false;
      continue;
    }
    if (!quota_->release(missing)) fail("release");
    return kv.resize(std::max<std::size_t>(kv.size(), bytes)).has_value();
  }
}

std::uint64_t kv_engine::idle_bytes() {
  const std::lock_guard lock(mutex_);
  std::uint64_t out = 0;
  for (const idle_cache &c : idle_) out += c.kv.mapped_bytes();
  return out;
}

bool kv_engine::drop_idle() {
  std::list<idle_cache> oldest;
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) return false;
  oldest.splice(oldest.begin(), idle_, idle_.begin());
  ++stats_.dropped;
  return true;
}

// Asks the other engine for idle caches and waits for them, while this one goes on. The pages are created at once, as
// the room is that of the thread. Only for requests in the batch: what is kept free for one that waits is what those of
// the other engine need to go on, which would give up what they have computed.
void kv_engine::ask(std::size_t pages) {
  if (is_asking()) return;
  asks_ = std::async(std::launch::async, [this, bytes = pages * pool_->page_bytes()] {
    const std::uint64_t ready = pool_->stats().free.bytes();
    if (!quota_->make_room(bytes - std::min<std::uint64_t>(bytes, ready))) return false;
    const bool made = pool_->prepare(bytes).has_value();
    quota_->end_room();
    return made;
  });
}

bool kv_engine::is_asking() const {
  return asks_.valid() && asks_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
}

// For one request without any other in the batch, which is within the minimum: it waits for what other processes than
// the engines have used when the device was measured last.
void kv_engine::wait_alone(std::size_t pages) {
  if (asks_.valid()) (void)asks_.get();
  ask(pages);
  if (!asks_.get()) fail("what is within the minimum was refused");
}

std::uint64_t kv_engine::give_back(std::uint64_t bytes) {
  std::uint64_t given = 0;
  const std::lock_guard lock(mutex_);
  while (given < bytes && !idle_.empty()) {
    given += idle_.front().kv.mapped_bytes();
    idle_.pop_front();
    ++stats_.given;
  }
  return given == 0 ? reclaim_later : given;
}

// ---- contents ----

void kv_engine::fill(sequence &s, std::size_t tokens) {
  for (std::size_t p = kv_pages(s.cached); p < kv_pages(tokens); ++p) {
    put(device_, s.kv.address() + p * pool_->page_bytes(), page_mark(s.request.conversation, p));
  }
  s.cached = tokens;
}

bool kv_engine::holds(const sequence &s) const {
  for (std::size_t p = 0; p < kv_pages(s.cached); ++p) {
    const auto mark = page_mark(s.request.conversation, p);
    if (get(device_, s.kv.address() + p * pool_->page_bytes(), mark.size()) != mark) return false;
  }
  return true;
}

}  // namespace stillmap::testing
