#include "tests/allocators/checked_heap.h"

#include <set>
#include <stdexcept>

#include "stillmap/vmm/address_space.h"

namespace stillmap::testing {
namespace {

constexpr std::size_t staging_bytes = std::size_t{4} << 20;
constexpr std::size_t piece = 64;

std::uint64_t value_of(const void *at) {
  return reinterpret_cast<std::uintptr_t>(at);
}

}  // namespace

namespace {

std::unique_ptr<caching_allocator> made(const device &d, caching_allocator_options options) {
  auto heap = caching_allocator::create(d, std::move(options));
  if (!heap) throw std::runtime_error(heap.error().message());
  return std::move(*heap);
}

}  // namespace

checked_heap::checked_heap(const device &d, caching_allocator_options options)
    : checked_heap(d, made(d, std::move(options))) {}

checked_heap::checked_heap(const device &d, std::unique_ptr<caching_allocator> heap)
    : device_(d), heap_(std::move(heap)) {
  const context_guard guard(d.driver(), d.context());
  auto pinned = d.driver().allocate_host(staging_bytes);
  if (!pinned) throw std::runtime_error(pinned.error().message());
  staging_ = static_cast<unsigned char *>(*pinned);
}

checked_heap::~checked_heap() {
  settle();
  if (!wrong_.empty()) ADD_FAILURE() << wrong_;
  heap_.reset();
  const context_guard guard(device_.driver(), device_.context());
  must(device_.driver().free_host(staging_));
}

void checked_heap::must(const status &s) {
  if (!s) wrong_ += s.error().message() + "\n";
}

result<void *> checked_heap::allocate(std::size_t bytes, stream_ref s, allocate_options options) {
  auto got = called([&] { return heap_->allocate(bytes, s, options); });
  if (!got || *got == nullptr) return got;
  const std::uint64_t at = value_of(*got);
  const auto usable = heap_->usable_size(*got);
  must(usable ? status{} : tl::unexpected<error>(usable.error()));
  const std::size_t whole = usable ? *usable : bytes;
  if (whole < bytes) wrong_ += "a block smaller than was asked for\n";
  if (at % options.alignment != 0) wrong_ += "a block that is not aligned\n";
  auto next = blocks_.lower_bound(at);
  if (next != blocks_.end() && next->first < at + whole) wrong_ += "overlaps the block above\n";
  if (next != blocks_.begin()) {
    --next;
    if (next->first + next->second.usable > at) wrong_ += "overlaps the block below\n";
  }
  block b{bytes, whole, s, static_cast<unsigned char>(options.zero ? 0 : next_value_++)};
  if (next_value_ == 0) next_value_ = 1;
  if (contents && !options.zero) {
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().set_bytes_async(device_address(at), b.value, bytes, s.get()));
  }
  blocks_[at] = b;
  return got;
}

// A few bytes at either end and on both sides of each page boundary.
void checked_heap::read(void *at, stream_ref s) {
  if (!contents) return;
  const std::uint64_t begin = value_of(at);
  const block &b = blocks_.at(begin);
  const std::size_t page = device_.capabilities().page_bytes;
  std::set<std::uint64_t> places{begin, begin + b.bytes - std::min(piece, b.bytes)};
  for (std::uint64_t edge = (begin / page + 1) * page; edge < begin + b.bytes; edge += page) {
    if (edge - begin >= piece) places.insert(edge - piece);
    if (begin + b.bytes - edge >= piece) places.insert(edge);
  }
  const context_guard guard(device_.driver(), device_.context());
  for (const std::uint64_t place : places) {
    const std::size_t n = std::min<std::size_t>(piece, begin + b.bytes - place);
    if (staged_ + piece > staging_bytes) settle();
    must(
        device_.driver().copy_to_host_async(staging_ + staged_, device_address(place), n, s.get()));
    for (std::size_t i = n; i < piece; ++i) staging_[staged_ + i] = b.value;
    reads_.push_back({staged_, b.value, place});
    staged_ += piece;
  }
}

void checked_heap::settle() {
  {
    const context_guard guard(device_.driver(), device_.context());
    must(device_.driver().synchronize_context());
  }
  for (const pending &p : reads_) {
    for (std::size_t i = 0; i < piece; ++i) {
      if (staging_[p.staged + i] == p.value) continue;
      wrong_ += "a wrong byte at " + std::to_string(p.at + i) + ": " +
                std::to_string(staging_[p.staged + i]) + ", written was " +
                std::to_string(p.value) + "\n";
      break;
    }
  }
  reads_.clear();
  staged_ = 0;
}

status checked_heap::free(void *at) {
  read(at, blocks_.at(value_of(at)).stream);
  return freed(at, called([&] { return heap_->free(at); }));
}

void checked_heap::order(stream_ref from, stream_ref to) {
  const auto after = fence::after(device_, from);
  must(after ? after->make_wait(device_, to) : tl::unexpected<error>(after.error()));
}

status checked_heap::use_on(void *at, stream_ref s) {
  order(blocks_.at(value_of(at)).stream, s);
  read(at, s);
  return called([&] { return heap_->record_use(at, s); });
}

status checked_heap::free_on(void *at, stream_ref s) {
  order(blocks_.at(value_of(at)).stream, s);
  read(at, s);
  return freed(at, called([&] { return heap_->free(at, s); }));
}

status checked_heap::freed(void *at, status outcome) {
  if (outcome) blocks_.erase(value_of(at));
  return outcome;
}

status checked_heap::trim(std::size_t keep) {
  const auto given = called([&] { return heap_->trim(keep); });
  return given ? status{} : tl::unexpected<error>(given.error());
}

void checked_heap::drop_all() {
  for (const auto &[at, b] : blocks_) must(heap_->free(device_address(at).pointer()));
  blocks_.clear();
}

std::size_t checked_heap::live() const {
  std::size_t sum = 0;
  for (const auto &[at, b] : blocks_) sum += b.usable;
  return sum;
}

std::string checked_heap::disagreement() {
  std::string out = wrong_;
  const caching_allocator_stats s = heap_->stats();
  if (s.total.live != live()) {
    out += "live is " + std::to_string(s.total.live) + ", not " + std::to_string(live()) + "\n";
  }
  if (s.total.blocks != blocks_.size()) out += "the number of blocks\n";
  if (s.total.committed < s.total.live) out += "more live than committed\n";
  // Mapped pages that are not being unmapped are the committed and aliased ones.
  std::size_t mapped = 0, committed = 0;
  const heap_map m = heap_->map().value();
  for (const mapping_record &r : device_.space().mappings()) {
    if (r.state == mapping_state::mapped && heap_->owns(r.range.begin.pointer())) {
      mapped += r.range.bytes;
    }
  }
  for (const auto &a : m.arenas) {
    for (const heap_extent &seg : a.extents) {
      if (has_memory(seg.part)) committed += seg.range.bytes;
    }
  }
  if (committed != s.total.committed)
    out += "the map and the statistics disagree on committed bytes\n";
  if (mapped != committed + s.total.aliased) {
    out += "the ledger has " + std::to_string(mapped) + " mapped, the allocator says " +
           std::to_string(committed) + "\n";
  }
  return out;
}

}  // namespace stillmap::testing
