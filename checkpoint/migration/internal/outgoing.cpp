#include "stillmap/checkpoint/migration/internal/outgoing.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
namespace stillmap::migration {

outgoing::outgoing(const device &d, std::vector<std::string> tags, std::uint32_t chunk_bytes)
    : device_(d),
      tags_(std::move(tags)),
      chunk_bytes_(chunk_bytes),
      gate_(std::make_shared<gate>(tags_)),
      watching_(d.space().on_backing_change(
          [books = gate_](const backing_event &e) { books->going(e); })) {}

result<bool> outgoing::look() {
  std::vector<virtual_range> before;
  {
    const std::lock_guard lock(gate_->mutex);
    before.swap(gate_->gone);
  }
  std::unordered_set<std::uint64_t> ours;  // held by what_
  for (const page_ptr &p : what_.pages) ours.insert(p->id());
  auto seen = checkpoint::describe(
      device_, tags_, [&](const page_ptr &p) { return ours.count(p->id()) != 0 ? 1L : 0L; });
  auto different = seen ? take(std::move(*seen)) : tl::unexpected(seen.error());
  if (!different) {
    const std::lock_guard lock(gate_->mutex);
    gate_->gone.insert(gate_->gone.end(), before.begin(), before.end());
  }
  return different;
}

result<bool> outgoing::take(checkpoint::described_memory seen) {
  if (!what_.layout.blocks.empty() && same_as(seen.layout, seen.pages)) return false;
  const auto at = checkpoint::readable_at(seen.layout);
  if (!at) return tl::unexpected(at.error());
  std::unordered_map<std::uint64_t, std::uint32_t> known;
  for (std::size_t i = 0; i < what_.pages.size(); ++i) {
    known.emplace(what_.pages[i]->id(), numbers_[i]);
  }
  numbers_.clear();
  for (const page_ptr &p : seen.pages) {
    const auto before = known.find(p->id());
    numbers_.push_back(before != known.end() ? before->second : next_number_++);
  }
  what_ = std::move(seen);
  bytes_ = what_.layout.bytes();
  list_chunks(*at);
  return true;
}

bool outgoing::same_as(const checkpoint::memory_layout &l,
                       const std::vector<page_ptr> &pages) const {
  const checkpoint::memory_layout &had = what_.layout;
  const auto same = [](const auto &a, const auto &b, const auto &equal) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
  };
  return same(l.blocks, had.blocks,
              [](const auto &a, const auto &b) { return a.range == b.range && a.tag == b.tag; }) &&
         same(pages, what_.pages,
              [](const page_ptr &a, const page_ptr &b) { return a->id() == b->id(); }) &&
         same(l.places, had.places,
              [](const auto &a, const auto &b) {
                return a.at == b.at && a.page == b.page && a.access == b.access;
              }) &&
         l.access == had.access;
}

void outgoing::list_chunks(const std::vector<device_address> &pages_at) {
  std::unordered_map<std::uint64_t, image::digest> known;
  for (const chunk &c : chunks_) {
    if (c.known) known.emplace(c.number, c.sent);
  }
  chunks_.clear();
  for (std::size_t i = 0; i < numbers_.size(); ++i) {
    const std::size_t bytes = what_.layout.pages[i].bytes;
    for (std::size_t at = 0; at < bytes; at += chunk_bytes_) {
      chunk c{chunk_number(numbers_[i], static_cast<std::uint32_t>(at / chunk_bytes_)),
              {pages_at[i] + at, std::min<std::size_t>(chunk_bytes_, bytes - at)},
              {},
              false};
      if (const auto before = known.find(c.number); before != known.end()) {
        c.sent = before->second;
        c.known = true;
      }
      chunks_.push_back(c);
    }
  }
}

bool outgoing::gate::is_gone(virtual_range r) const {
  return std::any_of(gone.begin(), gone.end(), [&](virtual_range g) { return g.overlaps(r); });
}

// Called by who changes it, before.
void outgoing::gate::going(const backing_event &e) {
  if (e.when != backing_event::phase::about_to_change) return;
  if (std::find(tags.begin(), tags.end(), e.block->tag()) == tags.end()) return;
  std::unique_lock lock(mutex);
  gone.push_back(e.range);
  const auto free = [&](const std::vector<virtual_range> &in_use) {
    return std::none_of(in_use.begin(), in_use.end(),
                        [&](virtual_range r) { return r.overlaps(e.range); });
  };
  left.wait(lock, [&] { return free(read) && free(looked_at); });
}

bool outgoing::enter(virtual_range r) {
  const std::lock_guard lock(gate_->mutex);
  if (gate_->is_gone(r)) return false;
  gate_->read.push_back(r);
  return true;
}

void outgoing::leave(virtual_range r) {
  const std::lock_guard lock(gate_->mutex);
  gate_->read.erase(std::find(gate_->read.begin(), gate_->read.end(), r));
  gate_->left.notify_all();
}

result<std::vector<std::size_t>> outgoing::changed(std::span<const std::size_t> which) {
  std::vector<virtual_range> ranges;
  std::vector<bool> looked(which.size());
  {
    const std::lock_guard lock(gate_->mutex);
    for (std::size_t i = 0; i < which.size(); ++i) {
      const chunk &c = chunks_[which[i]];
      looked[i] = c.known && !gate_->is_gone(c.at);
      if (looked[i]) ranges.push_back(c.at);
    }
    gate_->looked_at = ranges;
  }
  const auto digests =
      ranges.empty() ? result<std::vector<image::digest>>() : digester_->digests_of(ranges);
  {
    const std::lock_guard lock(gate_->mutex);
    gate_->looked_at.clear();
    gate_->left.notify_all();
  }
  if (!digests) return tl::unexpected(digests.error());
  std::vector<std::size_t> out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (!looked[i] || (*digests)[next++] != chunks_[which[i]].sent) out.push_back(which[i]);
  }
  return out;
}

status outgoing::prepare_digests() {
  auto made = snapshot::chunk_digester::create(device_);
  if (!made) return tl::unexpected(made.error());
  digester_.emplace(std::move(*made));
  // Whatever is first and still there: that the kernel is loaded does not say that it runs.
  for (const chunk &c : chunks_) {
    if (!enter(c.at)) continue;
    const auto one = digester_->digests_of({&c.at, 1});
    leave(c.at);
    if (!one) return tl::unexpected(one.error());
    break;
  }
  return {};
}

std::vector<std::size_t> outgoing::all() const {
  std::vector<std::size_t> out(chunks_.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

std::vector<std::size_t> outgoing::some(std::size_t n) const {
  const std::size_t every = std::max<std::size_t>(1, chunks_.size() / std::max<std::size_t>(n, 1));
  std::vector<std::size_t> out;
  for (std::size_t i = every / 2; i < chunks_.size(); i += every) out.push_back(i);
  return out;
}

}  // namespace stillmap::migration
