#include "stillmap/checkpoint/migration/internal/source_memory.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <numeric>
#include <unordered_map>
#include <unordered_set>

#include "stillmap/vmm/base/host_memory.h"
#include "stillmap/vmm/base/try.h"

namespace stillmap::migration {

source_memory::source_memory(const device &d, std::span<const std::string> tags,
                             std::uint32_t chunk_bytes, const image::digest_key &key)
    : device_(d),
      tags_(tags.begin(), tags.end()),
      chunk_bytes_(chunk_bytes),
      key_(key),
      gate_(std::make_shared<read_gate>(tags_)),
      subscription_(d.space().on_backing_change(
          [gate = gate_](const backing_event &e) { gate->about_to_change(e); })) {
  if (!subscription_) throw std::bad_alloc();  // pages that are unmapped must not be read
}

result<bool> source_memory::update() {
  std::size_t listed = 0, unknown = 0;
  {
    const lock_guard lock(gate_->mutex);
    listed = gate_->unmapped.size();
    unknown = gate_->unknown;
  }
  const auto different = with_host_memory([&]() -> result<bool> {
    std::unordered_set<std::uint64_t> ours;  // page ids that memory_ references
    for (const page_ptr &p : memory_.pages) ours.insert(p->id());
    STILLMAP_ASSIGN_OR_RETURN(checkpoint::described_memory seen,
                              checkpoint::describe(device_, tags_, [&](const page_ptr &p) {
                                return ours.count(p->id()) != 0 ? 1L : 0L;
                              }));
    return take(std::move(seen));
  });
  if (different) {
    // What was unmapped before is not in this layout.
    const lock_guard lock(gate_->mutex);
    gate_->unmapped.erase(gate_->unmapped.begin(),
                          gate_->unmapped.begin() + static_cast<std::ptrdiff_t>(listed));
    gate_->unknown -= unknown;
  }
  return different;
}

// Whatever allocates comes before the first change.
result<bool> source_memory::take(checkpoint::described_memory seen) {
  if (!memory_.layout.blocks.empty() && same_as(seen.layout, seen.pages)) return false;
  STILLMAP_ASSIGN_OR_RETURN(const auto at, checkpoint::readable_addresses(seen.layout));
  std::unordered_map<std::uint64_t, std::uint32_t> known;
  for (std::size_t i = 0; i < memory_.pages.size(); ++i) {
    known.emplace(memory_.pages[i]->id(), numbers_[i]);
  }
  std::vector<std::uint32_t> numbers;
  std::uint32_t next = next_number_;
  for (const page_ptr &p : seen.pages) {
    const auto before = known.find(p->id());
    numbers.push_back(before != known.end() ? before->second : next++);
  }
  chunks_ = list_chunks(seen.layout, numbers, at);
  memory_ = std::move(seen);
  numbers_ = std::move(numbers);
  next_number_ = next;
  bytes_ = memory_.layout.bytes();
  return true;
}

bool source_memory::same_as(const checkpoint::memory_layout &l,
                            const std::vector<page_ptr> &pages) const {
  const checkpoint::memory_layout &had = memory_.layout;
  const auto same = [](const auto &a, const auto &b, const auto &equal) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), equal);
  };
  return same(l.blocks, had.blocks,
              [](const auto &a, const auto &b) { return a.range == b.range && a.tag == b.tag; }) &&
         same(pages, memory_.pages,
              [](const page_ptr &a, const page_ptr &b) { return a->id() == b->id(); }) &&
         l.places == had.places && l.access == had.access;
}

std::vector<source_memory::chunk> source_memory::list_chunks(
    const checkpoint::memory_layout &l, const std::vector<std::uint32_t> &numbers,
    const std::vector<device_address> &pages_at) const {
  std::unordered_map<std::uint64_t, image::digest> known;
  for (const chunk &c : chunks_) {
    if (c.known) known.emplace(c.number, c.sent);
  }
  std::vector<chunk> out;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // Whole chunks: no destination prepares a layout with other pages.
    for (std::size_t at = 0; at < l.pages[i].bytes; at += chunk_bytes_) {
      chunk c{chunk_number(numbers[i], static_cast<std::uint32_t>(at / chunk_bytes_)),
              {pages_at[i] + at, chunk_bytes_},
              {},
              false};
      if (const auto before = known.find(c.number); before != known.end()) {
        c.sent = before->second;
        c.known = true;
      }
      out.push_back(c);
    }
  }
  return out;
}

bool source_memory::read_gate::is_unmapped(virtual_range r) const {
  return unknown != 0 || std::any_of(unmapped.begin(), unmapped.end(),
                                     [&](virtual_range u) { return u.overlaps(r); });
}

// Runs on the thread that changes the mapping.
void source_memory::read_gate::about_to_change(const backing_event &e) noexcept {
  if (e.when != backing_event::phase::about_to_change) return;
  if (std::find(tags.begin(), tags.end(), e.block->tag()) == tags.end()) return;
  unique_lock lock(mutex);
  try {
    unmapped.push_back(e.range);
  } catch (const std::bad_alloc &) {
    ++unknown;  // nothing is read until the next update()
  }
  const auto unused_by = [&](const std::vector<virtual_range> &ranges) {
    return std::none_of(ranges.begin(), ranges.end(),
                        [&](virtual_range r) { return r.overlaps(e.range); });
  };
  reads_ended.wait(
      lock, [&]() STILLMAP_REQUIRES(mutex) { return unused_by(reads) && unused_by(digests); });
}

result<bool> source_memory::begin_read(virtual_range r) {
  return with_host_memory([&]() -> result<bool> {
    const lock_guard lock(gate_->mutex);
    if (gate_->is_unmapped(r)) return false;
    gate_->reads.push_back(r);
    return true;
  });
}

void source_memory::end_read(virtual_range r) noexcept {
  const lock_guard lock(gate_->mutex);
  gate_->reads.erase(std::find(gate_->reads.begin(), gate_->reads.end(), r));
  gate_->reads_ended.notify_all();
}

result<std::vector<std::size_t>> source_memory::changed(std::span<const std::size_t> chunks) {
  std::vector<virtual_range> ranges;
  std::vector<bool> digested(chunks.size());
  {
    const lock_guard lock(gate_->mutex);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const chunk &c = chunks_[chunks[i]];
      digested[i] = c.known && !gate_->is_unmapped(c.at);
      if (digested[i]) ranges.push_back(c.at);
    }
    gate_->digests = ranges;
  }
  const auto digests =
      ranges.empty() ? result<std::vector<image::digest>>() : digester_->digests_of(ranges);
  {
    const lock_guard lock(gate_->mutex);
    gate_->digests.clear();
    gate_->reads_ended.notify_all();
  }
  if (!digests) return tl::unexpected(digests.error());
  std::vector<std::size_t> out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (!digested[i] || (*digests)[next++] != chunks_[chunks[i]].sent) out.push_back(chunks[i]);
  }
  return out;
}

status source_memory::prepare_digests() {
  STILLMAP_ASSIGN_OR_RETURN(digester_, snapshot::chunk_digester::create(device_, key_));
  // A kernel that loads may still fail to run, so it is tried on the first chunk that can be read.
  for (const chunk &c : chunks_) {
    STILLMAP_ASSIGN_OR_RETURN(const bool begun, begin_read(c.at));
    if (!begun) continue;
    const auto one = digester_->digests_of({&c.at, 1});
    end_read(c.at);
    // Not by the macro, which copies: copying a result of an object that allocates is noexcept.
    if (!one) return tl::unexpected(one.error());
    break;
  }
  return {};
}

std::vector<std::size_t> source_memory::all() const {
  std::vector<std::size_t> out(chunks_.size());
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

std::vector<std::size_t> source_memory::sample(std::size_t n) const {
  const std::size_t every = std::max<std::size_t>(1, chunks_.size() / std::max<std::size_t>(n, 1));
  std::vector<std::size_t> out;
  for (std::size_t i = every / 2; i < chunks_.size(); i += every) out.push_back(i);
  return out;
}

}  // namespace stillmap::migration
