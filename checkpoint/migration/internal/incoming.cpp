#include "stillmap/checkpoint/migration/internal/incoming.h"

#include <algorithm>
#include <iterator>
#include <system_error>

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::receive";
// Pages made and mapped at a time: enough for a set-access to be worth it, few enough that the
// first chunks need not wait.
constexpr std::size_t at_a_time = 16;

}  // namespace

status incoming::prepare(layout_message l) {
  {
    const std::lock_guard lock(mutex_);
    if (status s = between_rounds(); !s) return s;
  }
  stop_making();
  checkpoint::memory_layout kinds;
  kinds.pages = l.layout.pages;
  auto by = checkpoint::page_maker::create(device_, kinds);
  if (!by) return tl::unexpected(by.error());
  if (status s = reserve(std::move(l)); !s) return s;
  try {
    maker_ = std::jthread([this, by = std::move(*by)](const std::stop_token &stop) mutable {
      make(std::move(by), stop);
    });
  } catch (const std::system_error &e) {
    const std::lock_guard lock(mutex_);
    making_ = tl::unexpected(error{e.code(), op, "no thread to be had"});
    made_.notify_all();
    return making_;
  }
  return {};
}

status incoming::between_rounds() const {
  if (rounds_ == 0) return {};
  return make_error(errc::corrupt, op, "a new layout in the middle of a round", rounds_);
}

// Addresses first: somebody else may have them. Those that are ours are given up, and had again.
status incoming::reserve(layout_message l) {
  if (status s = checkpoint::check(l.layout, device_.capabilities().page_bytes); !s) return s;
  if (status s = checkpoint::can_hold(device_, l.layout); !s) return s;
  if (most_bytes_ != 0 && l.layout.bytes() > most_bytes_) {
    return make_error(errc::out_of_memory, op, "it is more than this receiver takes",
                  l.layout.bytes(), most_bytes_);
  }
  std::size_t bytes = 0;
  for (const auto &p : l.layout.pages) {
    if (p.bytes % chunk_bytes_ != 0) {
      return make_error(errc::corrupt, op, "a page is not of whole chunks", p.bytes, chunk_bytes_);
    }
    bytes += p.bytes;
  }
  const std::lock_guard lock(mutex_);
  if (status s = between_rounds(); !s) return s;
  memory_.reset();
  bench_.reset();
  std::map<std::uint32_t, page> before;
  before.swap(pages_);
  auto landing = checkpoint::restored_memory::reserve(device_, l.layout);
  if (!landing) return tl::unexpected(landing.error());
  if (bytes != 0) {
    auto bench = checkpoint::staging_mapping::reserve(device_, bytes);
    if (!bench) return tl::unexpected(bench.error());
    bench_ = std::move(*bench);
  }
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    page p;
    p.bytes = l.layout.pages[i].bytes;
    if (const auto had = before.find(l.pages[i]);
        had != before.end() && had->second.bytes == p.bytes) {
      p = std::move(had->second);
      p.at = {};
    }
    p.chunks.resize(p.bytes / chunk_bytes_);
    pages_.emplace(l.pages[i], std::move(p));
  }
  numbers_ = std::move(l.pages);
  memory_ = std::move(*landing);
  making_ = {};
  all_there_ = false;
  return {};
}

// A thread of its own.
void incoming::make(checkpoint::page_maker by, const std::stop_token &stop) {
  status s;
  for (std::size_t i = 0; s && i < numbers_.size() && !stop.stop_requested(); i += at_a_time) {
    s = make_some(by, i, std::min(i + at_a_time, numbers_.size()));
  }
  const std::lock_guard lock(mutex_);
  if (s && stop.stop_requested()) s = make_error(errc::busy, op, "it is given up");
  if (s) {
    std::vector<page_ptr> order;
    for (const std::uint32_t n : numbers_) order.push_back(pages_.at(n).memory);
    s = memory_->map(order);
  }
  making_ = s;
  all_there_ = s.has_value();
  made_.notify_all();
}

status incoming::make_some(checkpoint::page_maker &by, std::size_t first, std::size_t end) {
  std::vector<page_ptr> here;
  for (std::size_t i = first; i < end; ++i) {
    if (const page &p = pages_.at(numbers_[i]); p.memory) {
      here.push_back(p.memory);
      continue;
    }
    std::size_t missing = i + 1;
    while (missing < end && !pages_.at(numbers_[missing]).memory) ++missing;
    auto made = by.make(i, missing - i);
    if (!made) return tl::unexpected(made.error());
    std::move(made->begin(), made->end(), std::back_inserter(here));
    i = missing - 1;
  }
  if (status s = bench_->add(here); !s) return s;
  const std::lock_guard lock(mutex_);
  for (std::size_t i = first; i < end; ++i) {
    page &p = pages_.at(numbers_[i]);
    p.memory = std::move(here[i - first]);
    p.at = bench_->at()[i];
  }
  made_.notify_all();
  return {};
}

void incoming::stop_making() {
  maker_.request_stop();
  if (maker_.joinable()) maker_.join();
}

bool incoming::prepared() const {
  const std::lock_guard lock(mutex_);
  return memory_.has_value();
}

result<std::size_t> incoming::begin_round() {
  const std::lock_guard lock(mutex_);
  if (!memory_) return make_error(errc::corrupt, op, "contents before there is a layout");
  ++rounds_;
  std::size_t chunks = 0;
  for (const auto &[number, p] : pages_) chunks += p.chunks.size();
  return chunks;
}

void incoming::end_round() {
  const std::lock_guard lock(mutex_);
  --rounds_;
}

std::optional<std::pair<incoming::page *, std::uint32_t>> incoming::find(std::uint64_t number) {
  const auto p = pages_.find(static_cast<std::uint32_t>(number >> 32));
  const auto index = static_cast<std::uint32_t>(number);
  if (p == pages_.end() || index >= p->second.chunks.size()) return std::nullopt;
  return std::pair{&p->second, index};
}

result<virtual_range> incoming::place_of(std::uint64_t number) {
  std::unique_lock lock(mutex_);
  const auto found = find(number);
  if (!found) return make_error(errc::corrupt, op, "there is no such chunk", number);
  const auto [p, index] = *found;
  made_.wait(lock, [p = p, this] { return bool(p->at) || !making_; });
  if (!p->at) return tl::unexpected(making_.error());
  p->chunks[index].known = false;
  return virtual_range{p->at + std::size_t{index} * chunk_bytes_, chunk_bytes_};
}

void incoming::landed(std::uint64_t number, const image::digest &d) {
  const std::lock_guard lock(mutex_);
  if (const auto found = find(number)) found->first->chunks[found->second] = {d, true};
}

result<std::vector<std::uint64_t>> incoming::compare(
    const std::vector<image::digest> &sealed) const {
  std::unique_lock lock(mutex_);
  if (!memory_) return make_error(errc::corrupt, op, "a seal before there is a layout");
  made_.wait(lock, [&] { return all_there_ || !making_; });
  if (!making_) return tl::unexpected(making_.error());
  std::size_t all = 0;
  for (const std::uint32_t n : numbers_) all += pages_.at(n).chunks.size();
  if (all != sealed.size()) {
    return make_error(errc::corrupt, op, "not as many chunks are sealed as there are",
                  sealed.size(), all);
  }
  std::vector<std::uint64_t> bad;
  auto should = sealed.begin();
  for (const std::uint32_t n : numbers_) {
    const page &p = pages_.at(n);
    for (std::uint32_t i = 0; i < p.chunks.size(); ++i, ++should) {
      if (!p.chunks[i].known || p.chunks[i].has != *should) bad.push_back(chunk_number(n, i));
    }
  }
  return bad;
}

checkpoint::restored_memory incoming::take() {
  stop_making();
  const std::lock_guard lock(mutex_);
  checkpoint::restored_memory out = std::move(*memory_);
  memory_.reset();
  bench_.reset();
  pages_.clear();
  numbers_.clear();
  return out;
}

}  // namespace stillmap::migration
