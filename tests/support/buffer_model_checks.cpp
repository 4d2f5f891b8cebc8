// Compares the state that buffers, ledger, pools and driver report with the model and with each other.
// Does not make queued work run.
#include <algorithm>

#include "tests/support/buffer_model.h"
#include "tests/support/small_machine.h"

namespace stillmap::testing {

void buffer_model::check_books() {
  const std::string violation = small_machine::violation();
  demand(violation.empty(), violation);
  demand(background_error_count() == unreported_ || may_report_,
         "a failure went to the error sink");
  unreported_ = background_error_count();
  for (buffer_state &b : buffers_) {
    if (!b.real) continue;
    check_buffer(b);
    demand(b.real->generation() >= b.generation, "a generation fell");
    b.generation = b.real->generation();
  }
  check_ledger();
  const std::string memory =
      small_machine::disagreement_about(device_->space().stats().physical.bytes());
  demand(memory.empty(), memory);
}

void buffer_model::check_buffer(buffer_state &b) const {
  const growable_buffer &real = *b.real;
  const auto equal = [](const char *what, std::uint64_t is, std::uint64_t should) {
    demand(is == should,
           std::string(what) + " is " + std::to_string(is) + ", not " + std::to_string(should));
  };
  equal("size()", real.size(), b.size);
  equal("mapped_bytes()", real.mapped_bytes(), b.slots.size() * b.page);
  equal("reserved()", real.reserved(), b.reserved);
  equal("address()", real.address().value(), b.address.value());
  equal("relocations", real.stats().relocations, b.relocations);
  std::size_t gap = 0;
  while (b.slots.contains(gap)) ++gap;
  equal("capacity()", real.capacity(), gap * b.page);
  b.capacity = gap * b.page;
  const std::size_t slots = std::min<std::size_t>(b.reserved / b.page, 256);
  for (std::size_t s = 0; s < slots; ++s) {
    demand(real.committed(s * b.page + 1, 1) == b.slots.contains(s),
           "committed() is wrong for page " + std::to_string(s));
  }
}

void buffer_model::check_ledger() const {
  const address_space &space = device_->space();
  const address_space_stats stats = space.stats();
  const auto mappings = space.mappings();
  const auto blocks = space.blocks();
  const std::size_t page = device_->capabilities().page_bytes;

  std::size_t mapped = 0, live_bytes = 0, paged = 0, retiring = 0, fallback = 0;
  std::map<std::uint64_t, const mapping_record *> at;
  std::set<std::uint64_t> pages;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const mapping_record &m = mappings[i];
    demand(i == 0 || mappings[i - 1].range.end() <= m.range.begin,
           "mappings overlap or are out of order");
    mapped += m.range.bytes;
    at[m.range.begin.value()] = &m;
    if (m.state == mapping_state::mapped) live_bytes += m.range.bytes;
    if (!m.backing) {
      fallback += m.range.bytes;
      continue;
    }
    ++paged;
    pages.insert(m.backing->id());
    if (m.state == mapping_state::retiring) ++retiring;
    demand(std::any_of(blocks.begin(), blocks.end(),
                       [&](const block_record &b) { return b.range.contains(m.range); }),
           "a mapping is in no block");
  }
  demand(stats.mapped_bytes == mapped, "the ledger's sum of mapped bytes is not the sum");
  demand(stats.live_mappings == paged, "the ledger's count of mappings is not the count");
  demand(stats.retiring_mappings == retiring, "the ledger's count of retiring mappings is wrong");
  std::size_t reserved = 0;
  for (const block_record &b : blocks) {
    reserved += b.range.bytes;
    std::size_t inside = 0, count = 0;
    for (const mapping_record &m : mappings) {
      if (!b.range.contains(m.range)) continue;
      inside += m.range.bytes;
      ++count;
    }
    demand(inside == b.mapped_bytes && count == b.mappings, "a block's sums are wrong");
  }
  demand(stats.reserved_bytes == reserved && stats.live_blocks == blocks.size(),
         "the ledger's sums of blocks are wrong");

  std::size_t held = 0;
  std::map<std::uint64_t, const page_model *> shown_by_page;
  std::map<const page_model *, std::uint64_t> page_of_model;
  for (const buffer_state &b : buffers_) {
    held += b.slots.size() * b.page;
    for (const auto &[s, slot] : b.slots) {
      if (!b.in_place) break;
      const auto it = at.find((b.address + s * b.page).value());
      demand(it != at.end() && it->second->state == mapping_state::mapped,
             "a committed page is not mapped");
      const mapping_record &m = *it->second;
      const auto wanted = slot.forked ? access_mode::read : access_mode::read_write;
      for (const access_grant &g : m.access) {
        demand(g.mode == wanted, "a page has the wrong access");
      }
      const std::uint64_t id = m.backing->id();
      demand(shown_by_page.emplace(id, slot.page.get()).first->second == slot.page.get(),
             "two slots show one page that should be two");
      demand(page_of_model.emplace(slot.page.get(), id).first->second == id,
             "two slots show two pages that should be one");
    }
  }
  demand(live_bytes == held, "the ledger has " + std::to_string(live_bytes) +
                                 " bytes mapped for buffers that hold " + std::to_string(held));

  std::size_t created = 0, free = 0;
  std::set<const page_pool *> seen;
  for (const auto &pool : pools_) {
    if (pool == nullptr || !seen.insert(pool.get()).second) continue;
    const page_pool_stats s = pool->stats();
    created += s.created.bytes();
    free += s.free.bytes();
    demand(s.waiting <= s.free && s.created <= s.peak, "a pool's numbers contradict themselves");
    demand(s.pages_created >= s.pages_released, "a pool released more than it created");
  }
  // A dropped pool lives as long as its pages do, and cannot be asked any more.
  const std::size_t known = created - std::min(created, free);
  demand(known <= pages.size() * page, "pools hold pages that are mapped nowhere");
  demand(stats.physical.bytes() >= created + fallback, "the ledger counts too little memory");
  demand(stats.physical.bytes() <= pages.size() * page + free + fallback + dropped_free(),
         "memory is neither free nor mapped: " + std::to_string(stats.physical.bytes()) +
             " bytes exist");
}

// Free pages of pools the test has let go of but buffers have not.
std::size_t buffer_model::dropped_free() const {
  std::size_t bytes = 0;
  for (const auto &weak : dropped_) {
    if (const auto pool = weak.lock()) bytes += pool->stats().free.bytes();
  }
  return bytes;
}

}  // namespace stillmap::testing
