#include "stillmap/migration/incoming.h"

#include <algorithm>

#include "stillmap/checkpoint/new_pages.h"
#include "stillmap/snapshot/chunk_digests.h"

namespace stillmap::migration {
namespace {

constexpr const char *op = "migration::receive";

}  // namespace

status incoming::prepare(layout_message l) {
  const std::unique_lock lock(mutex_);
  if (status s = checkpoint::check(l.layout, device_.can().page_bytes); !s) return s;
  if (status s = checkpoint::can_hold(device_, l.layout); !s) return s;
  if (most_bytes_ != 0 && l.layout.bytes() > most_bytes_) {
    return refuse(condition::out_of_memory, op, "it is more than this receiver takes",
                  l.layout.bytes(), most_bytes_);
  }
  for (const auto &p : l.layout.pages) {
    if (p.bytes % chunk_bytes_ != 0) {
      return refuse(condition::corrupt, op, "a page is not of whole chunks", p.bytes, chunk_bytes_);
    }
  }
  // Addresses first: somebody else may have them. Those that are ours are given up, and had again.
  memory_.reset();
  bench_.reset();
  std::map<std::uint32_t, page> next;
  std::vector<page_ref> order;
  status s;
  auto landing = checkpoint::landed_memory::reserve(device_, l.layout);
  if (!landing) s = tl::unexpected(landing.error());
  if (s) s = make_new(l, next);
  if (s) {
    for (const std::uint32_t n : l.pages) order.push_back(next[n].memory);
    s = landing->map(order);
  }
  if (s && !order.empty()) {
    auto bench = checkpoint::workbench::create(device_, order);
    if (bench) {
      bench_ = std::move(*bench);
    } else {
      s = tl::unexpected(bench.error());
    }
  }
  if (!s) {
    pages_.clear();
    return s;
  }
  for (std::size_t i = 0; i < l.pages.size(); ++i) next[l.pages[i]].at = bench_->at()[i];
  pages_ = std::move(next);
  numbers_ = std::move(l.pages);
  memory_ = std::move(*landing);
  if (read_back_ && !numbers_.empty()) {
    const virtual_range first{pages_[numbers_.front()].at, chunk_bytes_};
    const auto made = snapshot::chunk_digests(device_, {&first, 1});
    reads_back_ = made.has_value();
    if (!made && made.error().is(condition::device_lost)) return tl::unexpected(made.error());
  }
  return {};
}

// Pages that are there already, and new ones for the rest.
status incoming::make_new(const layout_message &l, std::map<std::uint32_t, page> &into) const {
  checkpoint::memory_layout missing;
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 0; i < l.pages.size(); ++i) {
    const auto &kind = l.layout.pages[i];
    const auto had = pages_.find(l.pages[i]);
    if (had != pages_.end() && had->second.bytes == kind.bytes) {
      into.emplace(*had);
      continue;
    }
    missing.pages.push_back(kind);
    numbers.push_back(l.pages[i]);
  }
  auto made = checkpoint::make_pages(device_, missing);
  if (!made) return tl::unexpected(made.error());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    page p;
    p.memory = std::move((*made)[i]);
    p.bytes = missing.pages[i].bytes;
    p.chunks.resize(p.bytes / chunk_bytes_);
    into.emplace(numbers[i], std::move(p));
  }
  return {};
}

bool incoming::prepared() const {
  const std::shared_lock lock(mutex_);
  return memory_.has_value();
}

const incoming::page *incoming::find(std::uint64_t number, std::uint32_t &index) const {
  const auto p = pages_.find(static_cast<std::uint32_t>(number >> 32));
  index = static_cast<std::uint32_t>(number);
  return p != pages_.end() && index < p->second.chunks.size() ? &p->second : nullptr;
}

result<virtual_range> incoming::place_of(std::uint64_t number) const {
  const std::shared_lock lock(mutex_);
  std::uint32_t index = 0;
  const page *const p = find(number, index);
  if (p == nullptr) return refuse(condition::corrupt, op, "there is no such chunk", number);
  return virtual_range{p->at + std::size_t{index} * chunk_bytes_, chunk_bytes_};
}

result<std::vector<std::uint64_t>> incoming::landed(const std::vector<piece> &pieces) {
  const std::unique_lock lock(mutex_);
  std::vector<virtual_range> places;
  for (const piece &c : pieces) {
    std::uint32_t index = 0;
    const page *const p = find(c.number, index);
    if (p == nullptr) return refuse(condition::corrupt, op, "there is no such chunk", c.number);
    places.push_back({p->at + std::size_t{index} * chunk_bytes_, chunk_bytes_});
  }
  std::vector<image::digest> seen;
  if (reads_back_ && !places.empty()) {
    auto made = snapshot::chunk_digests(device_, places);
    if (!made) return tl::unexpected(made.error());
    seen = std::move(*made);
  }
  std::vector<std::uint64_t> bad;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const piece &c = pieces[i];
    std::uint32_t index = 0;
    find(c.number, index);
    chunk &here = pages_[static_cast<std::uint32_t>(c.number >> 32)].chunks[index];
    here.has = c.digest;
    here.known = !c.bad && (seen.empty() || seen[i] == c.digest);
    if (!here.known) bad.push_back(c.number);
  }
  return bad;
}

result<std::vector<std::uint64_t>> incoming::compare(
    const std::vector<image::digest> &sealed) const {
  const std::shared_lock lock(mutex_);
  std::size_t all = 0;
  for (const std::uint32_t n : numbers_) all += pages_.at(n).chunks.size();
  if (!memory_ || all != sealed.size()) {
    return refuse(condition::corrupt, op, "not as many chunks are sealed as there are",
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

checkpoint::landed_memory incoming::take() {
  const std::unique_lock lock(mutex_);
  checkpoint::landed_memory out = std::move(*memory_);
  memory_.reset();
  bench_.reset();
  pages_.clear();
  numbers_.clear();
  return out;
}

}  // namespace stillmap::migration
